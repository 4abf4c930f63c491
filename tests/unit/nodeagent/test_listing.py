"""How a runtime is told which devices to bring in, by every strategy; HAMi's recorded cases where they speak of it."""

from typing import Any

import pytest

from hami.domain.cluster import Delivery, Visible
from hami.nodeagent.decide.container import ContainerEdits, DeviceNode, Mount
from hami.nodeagent.decide.listing import Card, ListSettings, ListStrategy, listing_edits
from tests.support.data import load_json

CDI_CASES: Any = load_json("allocate-cases.json")["cdi"]
CARDS = (Card("GPU-a", "/dev/nvidia0"), Card("GPU-b", "/dev/nvidia3"))
E, M, A, C = ListStrategy.ENVVAR, ListStrategy.VOLUME_MOUNTS, ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI


def listed(cards: tuple[Card, ...] = CARDS, present: frozenset[str] = frozenset(), **settings: Any) -> ContainerEdits:
    made = ListSettings(**settings)
    return listing_edits(cards, made, present=present, response="r", cdi_extras=made.extras)


@pytest.mark.parametrize("case", CDI_CASES, ids=lambda case: case["id"])
def test_cdi_annotations_are_hamis(case: Any) -> None:
    extras = tuple(name.partition("/")[2].partition("=")[0] for name in case["additional"])
    settings = ListSettings(
        strategies=(A,),
        cdi_prefix=case["prefix"],
        cdi_vendor=case["vendor_in_test"],
        imex=tuple(map(int, case["imex"])),
        extras=extras,
    )
    cards = [Card(name) for name in case["device_ids"]]
    made = listing_edits(cards, settings, present=frozenset(), response=case["response_id"], cdi_extras=extras)
    assert made.annotations == case["annotations"]
    assert made.cdi_devices == ()


@pytest.mark.parametrize(
    ("strategies", "delivery", "visible"),
    [
        ((E,), Delivery.IDENTITY, Visible.UUID),
        ((M,), Delivery.ORDERED, Visible.MOUNTS),
        ((E, M), Delivery.ORDERED, Visible.MOUNTS),
        ((A,), Delivery.ORDERED, Visible.NOTHING),
        ((C,), Delivery.ORDERED, Visible.NOTHING),
        ((E, C), Delivery.ORDERED, Visible.UUID),
    ],
)
def test_what_names_devices_in_the_answer_must_know_whose_it_is(
    strategies: tuple[ListStrategy, ...], delivery: Delivery, visible: Visible
) -> None:
    settings = ListSettings(strategies=strategies)
    assert (settings.delivery, settings.visible) == (delivery, visible)


def test_device_nodes_make_an_answer_specific_and_indexes_do_not() -> None:
    assert ListSettings(device_nodes=True).delivery is Delivery.ORDERED
    assert (ListSettings(by_index=True).delivery, ListSettings(by_index=True).visible) == (Delivery.IDENTITY, Visible.INDEX)


def test_the_environment_names_each_card_once() -> None:
    assert listed((*CARDS, CARDS[0])).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert listed(imex=(0,), extras=("gdrcopy", "mofed")).envs == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "NVIDIA_IMEX_CHANNELS": "0",
        "NVIDIA_GDRCOPY": "enabled",
        "NVIDIA_MOFED": "enabled",
    }


def test_mounts_carry_the_list_and_the_variable_points_at_them() -> None:
    made = listed(strategies=(M,), imex=(0,))
    assert made.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert [mount.container for mount in made.mounts] == [
        "/var/run/nvidia-container-devices/GPU-a",
        "/var/run/nvidia-container-devices/GPU-b",
        "/var/run/nvidia-container-devices/imex/0",
    ]
    assert {mount.host for mount in made.mounts} == {"/dev/null"}
    assert made.mounts[0] == Mount("/var/run/nvidia-container-devices/GPU-a", "/dev/null", read_only=False)


def test_cdi_names_go_into_the_field_and_nothing_else_names_a_device() -> None:
    made = listed(strategies=(C,), imex=(0,), extras=("gds",))
    assert made.cdi_devices == (
        "k8s.device-plugin.nvidia.com/gpu=GPU-a",
        "k8s.device-plugin.nvidia.com/gpu=GPU-b",
        "k8s.device-plugin.nvidia.com/imex-channel=0",
        "k8s.device-plugin.nvidia.com/gds=all",
    )
    assert (made.envs, made.annotations, made.mounts, made.devices) == ({"NVIDIA_VISIBLE_DEVICES": "void"}, {}, (), ())


def test_both_cdi_ways_at_once_say_the_same() -> None:
    made = listed(strategies=(A, C))
    assert made.annotations["cdi.k8s.io/nvidia-device-plugin_r"] == ",".join(made.cdi_devices)


def test_device_nodes_are_those_that_exist_under_the_hosts_root() -> None:
    there = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia-caps-imex-channels/channel0"})
    made = listed(device_nodes=True, dev_root="/run/nvidia/driver/", imex=(0,), present=there)
    assert [node.container for node in made.devices] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/nvidia-caps-imex-channels/channel0",
    ]
    assert made.devices[0] == DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl", "rw")
