"""What the agent reads back: its own state, its cache folders, the kubelet's checkpoint."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami.domain.errors import InvalidInput, StoreUnavailable
from hami.domain.units import EpochMs
from hami.events.epochs import EpochFile
from hami.nodeagent.backends.simulated import simulated_cards
from hami.nodeagent.caches import GRACE_S, CacheFolders
from hami.nodeagent.decide.faults import CardHealth, Fault, FaultKind
from hami.nodeagent.decide.health import observe, policy_of
from hami.nodeagent.podresources import read_checkpoint
from hami.nodeagent.state import COPY, FILE, ServedContainer, StateFile
from hami.nodeagent.steady import steady_clock
from tests.support.data import kubelet_capture
from tests.support.plugins import RESOURCE


def test_state_comes_back_whole(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "made")
    state = first.load()
    fault = Fault(uuid="GPU-1", kind=FaultKind.XID, code=79)
    state.cards["GPU-1"] = observe(CardHealth(uuid="GPU-1"), fault, policy_of(), now=EpochMs(5), boot_id="b").card
    state.told = state.seen = simulated_cards(2)
    state.served["uid/main"] = ServedContainer(pod_uid="uid", container="main", reservation="r")
    first.save()
    assert StateFile(tmp_path / "made").load() == state


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"cards": 1}', b"\xff"])
def test_state_that_cannot_be_read_is_set_aside_not_overwritten(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / FILE).write_bytes(raw)
    kept = StateFile(tmp_path)
    assert kept.load().cards == {}
    kept.save()
    assert (tmp_path / FILE).with_suffix(".broken").read_bytes() == raw


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_state_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InvalidInput, match=r"agent\.state_dir: '.*file.*': "):
        StateFile(tmp_path / where).load()


@pytest.mark.parametrize("gone", [FILE, COPY])
def test_either_of_the_two_files_stands_in_for_the_other(tmp_path: Path, gone: str) -> None:
    memory = StateFile(tmp_path)
    memory.load().cards["GPU-1"] = CardHealth(uuid="GPU-1", unreachable="asleep")
    memory.save()
    (tmp_path / gone).write_bytes(b"{")
    assert StateFile(tmp_path).load() == memory.state


def test_a_record_that_is_lost_stays_lost_over_restarts(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"{")
    first = StateFile(tmp_path).load()
    assert FILE in first.lost
    assert StateFile(tmp_path).load() == first
    assert StateFile(tmp_path / "fresh").load().lost == ""


class Clocks:
    """A wall that anybody may set, and the machine's own time."""

    def __init__(self) -> None:
        self.wall, self.up = 1_000_000, 500

    def of(self, memory: StateFile, boot_id: str) -> Callable[[], EpochMs]:
        return steady_clock(memory, boot_id, lambda: EpochMs(self.wall), lambda: self.up)


def test_a_wall_clock_that_is_set_ends_no_hold(tmp_path: Path) -> None:
    clocks, memory = Clocks(), StateFile(tmp_path)
    memory.load()
    now = clocks.of(memory, "boot-1")
    memory.state.cards["GPU-1"] = CardHealth(uuid="GPU-1", clean_since_ms=now())
    clocks.wall += 3_600_000
    clocks.up += 60_000
    assert now() == 1_060_000
    memory.save()
    again = StateFile(tmp_path)
    again.load()
    assert clocks.of(again, "boot-1")() == 1_060_000, "the agent's restart takes the same clock"
    assert again.state.cards["GPU-1"].clean_since_ms == 1_000_000


@pytest.mark.parametrize("boot_id", ["boot-2", ""])
def test_in_another_boot_or_an_unknown_one_a_hold_starts_anew(tmp_path: Path, boot_id: str) -> None:
    clocks, memory = Clocks(), StateFile(tmp_path)
    memory.load()
    now = clocks.of(memory, "boot-1" if boot_id else "")
    memory.state.cards["GPU-1"] = CardHealth(uuid="GPU-1", clean_since_ms=now())
    memory.save()
    clocks.wall, clocks.up = 9_000_000, 3
    again = StateFile(tmp_path)
    again.load()
    assert clocks.of(again, boot_id)() == 9_000_000
    assert again.state.cards["GPU-1"].clean_since_ms == 0


def test_a_save_that_fails_is_said_and_made_good_later(tmp_path: Path) -> None:
    memory = StateFile(tmp_path)
    memory.load().cards["GPU-1"] = CardHealth(uuid="GPU-1", unreachable="asleep")
    in_the_way = (tmp_path / FILE).with_suffix(".new")
    in_the_way.mkdir()
    memory.save()
    assert str(tmp_path) in memory.trouble
    in_the_way.rmdir()
    memory.retry()
    assert memory.trouble == ""
    assert StateFile(tmp_path).load() == memory.state


def test_an_epoch_that_cannot_be_written_is_not_given_out(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epoch")
    first = epochs.next()
    (tmp_path / "epoch.new").mkdir()
    with pytest.raises(StoreUnavailable, match=str(tmp_path / "epoch")):
        epochs.next()
    (tmp_path / "epoch.new").rmdir()
    assert epochs.next() > first


def test_cache_folders_that_cannot_be_listed_cost_the_figures_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    caches = CacheFolders(tmp_path / "file")
    assert (caches.next_number(), caches.make(1), caches.sweep(())) == (1, "", 0)


def test_cache_folders_are_numbered_on(tmp_path: Path) -> None:
    caches = CacheFolders(tmp_path / "containers")
    assert caches.next_number() == 1
    assert caches.make(1) == str(tmp_path / "containers/allocate-1")
    assert caches.make(7)
    assert CacheFolders(tmp_path / "containers").next_number() == 8


def test_a_cache_folder_is_never_given_twice(tmp_path: Path) -> None:
    caches = CacheFolders(tmp_path)
    caches.make(1)
    assert caches.make(1) == ""


def test_only_folders_that_nobody_holds_go_and_only_after_a_while(tmp_path: Path) -> None:
    caches = CacheFolders(tmp_path)
    held, fresh, stale = (Path(caches.make(number)) for number in (1, 2, 3))
    (tmp_path / "someone-elses").mkdir()
    for folder in (held, stale, tmp_path / "someone-elses"):
        os.utime(folder, (0, folder.stat().st_mtime - GRACE_S - 1))
    assert caches.sweep({str(held)}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [held.name, fresh.name, "someone-elses"]


@pytest.mark.parametrize("number", [2, 4, 19])
def test_a_recorded_checkpoint_is_read(tmp_path: Path, number: int) -> None:
    result = kubelet_capture(number)["result"]
    recorded: Any = result["chk_before"] if number == 19 else result["checkpoint"]
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(json.dumps(recorded))
    entries = recorded["Data"]["PodDeviceEntries"]
    given = read_checkpoint(path, RESOURCE)
    assert given is not None
    assert [(each.uid, each.container, list(each.device_ids)) for each in given] == [
        (entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]["-1"]) for entry in entries
    ]
    assert given[0].answer == base64.b64decode(entries[0]["AllocResp"])
    assert read_checkpoint(path, "other/resource") == ()


def test_a_checkpoint_without_pods_and_no_checkpoint_differ(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    assert read_checkpoint(path, RESOURCE) is None
    path.write_text(json.dumps(kubelet_capture(1)["result"]["checkpoint"]))
    assert read_checkpoint(path, RESOURCE) == ()


@pytest.mark.parametrize("text", ["", "{}", '{"Data": 3}', '{"Data": {"PodDeviceEntries": [{}]}}'])
def test_a_checkpoint_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="kubelet checkpoint"):
        read_checkpoint(path, RESOURCE)
