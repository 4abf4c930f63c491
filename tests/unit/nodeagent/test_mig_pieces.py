"""Instances that an operator cut, by strategy; and which cards may be cut in mode `mig`."""

import msgspec
import pytest

from hami.config import AgentSettings
from hami.domain.device import Device, Health, MigPlacement
from hami.domain.errors import InvalidInput
from hami.domain.units import MiB
from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.backends.simulated_mig import A100_80GB
from hami.nodeagent.decide.mig import Instance
from hami.nodeagent.decide.pieces import resource_of
from hami.nodeagent.decide.register import DeviceSet, NodeConfig, ProfileRule, device_set
from hami.nodeagent.settings import node_config_of

WHOLE, CUT, OTHER = (
    msgspec.structs.replace(
        card, attributes={**card.attributes, "mig": mode}, mig_profiles=A100_80GB if mode == "enabled" else ()
    )
    for card, mode in zip(simulated_cards(3), ("disabled", "enabled", "enabled"), strict=True)
)


def piece(card: Device, number: int, profile: str = "1g.10gb", *, memory: int = 9728, whole: bool = True) -> Instance:
    return Instance(
        card=card.uuid,
        profile=profile,
        placement=MigPlacement(number, 1),
        gpu_instance=number,
        compute_instance=0,
        uuid=f"MIG-{card.index}-{number}",
        memory=MiB(memory),
        caps=("/dev/nvidia-caps/nvidia-cap1",),
        whole=whole,
    )


def offered(cards: tuple[Device, ...], pieces: list[Instance], strategy: str) -> DeviceSet:
    return device_set(cards, NodeConfig(mig_strategy=strategy), {}, pieces)


def test_none_lists_a_card_in_mig_mode_as_the_card_it_was() -> None:
    found = offered((WHOLE, CUT), [piece(CUT, 1)], "none")
    assert [device.uuid for device in found.devices] == [WHOLE.uuid, CUT.uuid]
    assert (found.mixed, found.pieces) == ({}, False)
    assert all(not device.mig_profiles for device in found.devices)


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_without_a_card_in_mig_mode_every_strategy_is_none(strategy: str) -> None:
    assert offered((WHOLE,), [], strategy) == offered((WHOLE,), [], "none")


def test_single_offers_instances_in_the_place_of_their_cards() -> None:
    found = offered((CUT, OTHER), [piece(CUT, 1), piece(CUT, 2), piece(OTHER, 1)], "single")
    assert [device.uuid for device in found.devices] == ["MIG-1-1", "MIG-1-2", "MIG-2-1"]
    first = found.devices[0]
    assert (first.slots, first.memory, first.cores, first.vendor) == (1, 9728, 100, "NVIDIA")
    assert first.model == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    assert first.attributes == {"card": CUT.uuid, "minor": "1", "caps": "/dev/nvidia-caps/nvidia-cap1"}
    assert found.pieces


@pytest.mark.parametrize(
    ("cards", "pieces", "why"),
    [
        ((WHOLE, CUT), [piece(CUT, 1)], "not in MIG mode"),
        ((CUT, OTHER), [piece(CUT, 1)], "nothing is cut out of"),
        ((CUT,), [piece(CUT, 1), piece(CUT, 2, "2g.20gb", memory=19968)], "several kinds"),
        ((CUT,), [piece(CUT, 1, whole=False), piece(CUT, 1, whole=False)], "nothing is cut out of"),
    ],
    ids=["a whole card", "an empty card", "two kinds", "shared compute instances"],
)
def test_single_offers_nothing_where_the_resource_would_mean_two_things(
    cards: tuple[Device, ...], pieces: list[Instance], why: str
) -> None:
    found = offered(cards, pieces, "single")
    assert (found.devices, found.mixed) == ((), {})
    assert {card.uuid for card in cards} <= set(found.left_out)
    assert all(why in found.left_out[card.uuid] for card in cards)


def test_mixed_offers_each_kind_as_a_resource_and_leaves_whole_cards_alone() -> None:
    pieces = [piece(CUT, 1), piece(CUT, 2, "2g.20gb", memory=19968), piece(OTHER, 1)]
    found = offered((WHOLE, CUT, OTHER), pieces, "mixed")
    assert [device.uuid for device in found.devices] == [WHOLE.uuid]
    assert {kind: [each.uuid for each in devices] for kind, devices in found.mixed.items()} == {
        "1g.10gb": ["MIG-1-1", "MIG-2-1"],
        "2g.20gb": ["MIG-1-2"],
    }


def test_mixed_offers_no_compute_instance_that_shares_its_gpu_instance() -> None:
    found = offered((WHOLE, CUT), [piece(CUT, 1), piece(CUT, 2, whole=False)], "mixed")
    assert [each.uuid for each in found.mixed["1g.10gb"]] == ["MIG-1-1"]
    assert set(found.left_out) == {"MIG-1-2"}


def test_an_instance_is_no_better_than_its_card() -> None:
    sick = {CUT.uuid: Health.UNHEALTHY, "MIG-2-1": Health.SUSPECT, OTHER.uuid: Health.HEALTHY}
    pieces = [piece(CUT, 1), piece(OTHER, 1), piece(OTHER, 2)]
    found = device_set((CUT, OTHER), NodeConfig(mig_strategy="single"), sick, pieces)
    assert [each.health for each in found.devices] == [Health.UNHEALTHY, Health.SUSPECT, Health.HEALTHY]


def test_resources_are_named_as_nvidias_plugin_names_them() -> None:
    assert resource_of("1g.10gb", "nvidia.com/gpu") == "nvidia.com/mig-1g.10gb"
    assert resource_of("1g.10gb+me", "example.com/gpu") == "example.com/mig-1g.10gb.me"


def test_mode_mig_offers_cards_that_can_be_cut_and_says_why_the_others_are_not() -> None:
    plain = msgspec.structs.replace(simulated_cards(4)[3])
    stuck = msgspec.structs.replace(OTHER, attributes={"mig": "pending"}, mig_profiles=())
    found = device_set((WHOLE, CUT, stuck, plain), NodeConfig(mode="mig", mig_strategy="mixed"), {}, [piece(CUT, 1)])
    [card] = found.devices
    assert (card.uuid, card.slots, card.mode) == (CUT.uuid, 7, "mig")
    assert [each.name for each in card.mig_profiles] == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert {uuid: why.removeprefix("mode mig: ") for uuid, why in found.left_out.items()} == {
        WHOLE.uuid: "it is not in MIG mode yet",
        stuck.uuid: "its MIG mode waits for a reset of the card",
        plain.uuid: "it cannot be cut",
    }


def test_the_first_rule_for_a_model_says_which_profiles_may_be_made() -> None:
    rules = (
        ProfileRule(("H100",), ("1g.10gb",)),
        ProfileRule(("A30", "A100"), ("2g.20gb", "7g.80gb")),
        ProfileRule(("A",), ("1g.10gb",)),
    )
    [card] = device_set((CUT,), NodeConfig(mode="mig", mig_profiles=rules), {}).devices
    assert ([each.name for each in card.mig_profiles], card.slots) == (["2g.20gb", "7g.80gb"], 3)
    none = device_set((CUT,), NodeConfig(mode="mig", mig_profiles=rules[:1]), {})
    assert none.left_out == {CUT.uuid: "mode mig: no profile is allowed on it"}


def test_a_profile_with_extras_is_made_only_where_a_rule_names_it() -> None:
    extra = msgspec.structs.replace(A100_80GB[0], name="1g.10gb+me")
    card = msgspec.structs.replace(CUT, mig_profiles=(*A100_80GB, extra))
    [plain] = device_set((card,), NodeConfig(mode="mig"), {}).devices
    assert extra not in plain.mig_profiles
    rule = ProfileRule(("A100",), ("1g.10gb+me",))
    [named] = device_set((card,), NodeConfig(mode="mig", mig_profiles=(rule,)), {}).devices
    assert named.mig_profiles == (extra,)


def test_rules_are_read_from_the_settings() -> None:
    settings = AgentSettings(mig_profiles="A100|A30=1g.10gb, 2g.20gb ; H100=1g.10gb")
    assert node_config_of(settings).mig_profiles == (
        ProfileRule(("A100", "A30"), ("1g.10gb", "2g.20gb")),
        ProfileRule(("H100",), ("1g.10gb",)),
    )
    for text in ("A100", "=1g.10gb", "A100=", "A100=1g.10gb;;H100"):
        with pytest.raises(InvalidInput, match=r"agent\.mig_profiles"):
            node_config_of(AgentSettings(mig_profiles=text))
