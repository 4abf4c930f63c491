"""The device set that the cluster is told: scaled, filtered, stable, told again only when it changed."""

import msgspec

from hami.domain.device import Health
from hami.domain.units import MiB
from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.backends.simulated_mig import A100_80GB
from hami.nodeagent.decide.register import NodeConfig, device_set, differs

CARDS = simulated_cards(3)


def test_cards_are_split_and_scaled() -> None:
    config = NodeConfig(split_count=7, memory_scaling=1.5, core_scaling=2.0)
    [first, *_] = device_set(CARDS, config, {}).devices
    assert (first.slots, first.memory, first.cores, first.mode) == (7, 122880, 200, "hami-core")


def test_a_mig_card_is_not_scaled() -> None:
    cards = [msgspec.structs.replace(card, attributes={"mig": "enabled"}, mig_profiles=A100_80GB) for card in CARDS]
    [first, *_] = device_set(cards, NodeConfig(mode="mig", memory_scaling=2.0, core_scaling=2.0), {}).devices
    assert (first.memory, first.cores) == (81920, 100)


def test_excluded_cards_are_left_out_with_the_reason() -> None:
    config = NodeConfig(exclude_uuids=frozenset({CARDS[0].uuid}), exclude_indexes=frozenset({2}))
    found = device_set(CARDS, config, {})
    assert [device.uuid for device in found.devices] == [CARDS[1].uuid]
    assert set(found.left_out) == {CARDS[0].uuid, CARDS[2].uuid}


def test_memory_that_nobody_knows_leaves_the_card_out_unless_the_settings_give_it() -> None:
    unknown = (msgspec.structs.replace(CARDS[0], memory=MiB(0)),)
    assert device_set(unknown, NodeConfig(), {}).devices == ()
    [device] = device_set(unknown, NodeConfig(preconfigured_memory=MiB(4096)), {}).devices
    assert device.memory == 4096


def test_the_set_does_not_depend_on_the_order_of_discovery() -> None:
    assert device_set(CARDS, NodeConfig(), {}) == device_set(CARDS[::-1], NodeConfig(), {})


def test_only_a_change_of_the_set_is_told_again() -> None:
    told = device_set(CARDS, NodeConfig(), {})
    assert differs(None, told)
    assert not differs(told.devices, told)
    assert not differs(told.devices, device_set(CARDS, NodeConfig(), {CARDS[0].uuid: Health.UNHEALTHY}))
    assert differs(told.devices, device_set(CARDS[:2], NodeConfig(), {}))
    assert differs(told.devices, device_set(CARDS, NodeConfig(split_count=2), {}))


def test_remembered_health_goes_with_the_registration() -> None:
    found = device_set(CARDS, NodeConfig(), {CARDS[1].uuid: Health.UNHEALTHY})
    assert [device.health for device in found.devices] == [Health.HEALTHY, Health.UNHEALTHY, Health.HEALTHY]
