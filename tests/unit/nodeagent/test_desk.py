"""The desk: saved first, then told, in order, also when the agent ends in between."""

from pathlib import Path

import anyio
import pytest

from hami.events.catalog.device import FaultKind, FaultObserved
from hami.nodeagent.decide.faults import CardHealth
from hami.nodeagent.desk import Desk
from hami.nodeagent.state import StateFile
from tests.support.agents import RecordingPublisher
from tests.support.waiting import wait_until


class Checked(RecordingPublisher):
    """At each event: what is on disk by then."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.on_disk: list[set[str]] = []

    def publish(self, event: object, *, subject: str = "") -> None:
        super().publish(event, subject=subject)  # type: ignore[arg-type]
        self.on_disk.append(set(StateFile(self._folder).load().cards))


def fault(name: str) -> FaultObserved:
    return FaultObserved(device=name, kind=FaultKind.XID, code=79)


async def test_an_event_leaves_after_what_it_rests_on_is_saved(tmp_path: Path) -> None:
    memory, behind = StateFile(tmp_path), Checked(tmp_path)
    memory.load()
    desk = Desk(memory, behind)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        for name in ("a", "b", "c"):
            memory.state.cards[name] = CardHealth(uuid=name)
            memory.save()
            desk.publish(fault(name))
            assert not desk.state.idle
            await anyio.lowlevel.checkpoint()
        await wait_until(lambda: desk.empty, "the desk to be empty")
        assert desk.state.idle
        tasks.cancel_scope.cancel()
    assert [event.device for event in behind.of(FaultObserved)] == ["a", "b", "c"]
    assert all(name in seen for name, seen in zip("abc", behind.on_disk, strict=True))


@pytest.mark.parametrize("turns", range(8))
async def test_an_agent_that_ends_at_any_moment_has_saved_and_told_everything(tmp_path: Path, turns: int) -> None:
    memory, behind = StateFile(tmp_path), Checked(tmp_path)
    memory.load()
    desk = Desk(memory, behind)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await anyio.lowlevel.checkpoint()
        memory.state.cards["a"] = CardHealth(uuid="a")
        memory.save()
        desk.publish(fault("a"))
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert set(StateFile(tmp_path).load().cards) == {"a"}
    assert behind.on_disk == [{"a"}]
