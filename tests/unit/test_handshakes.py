"""When a third-party plugin is silent, and when it is answered: by the time of its reports here, and by nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from hami.domain.cluster import Foreign, NodeState
from hami.domain.device import DeviceState, Health
from hami.domain.pod import Node, ObjectMeta, Pod
from hami.events.clock import ManualClock
from hami.kube.errors import ApiError
from hami.scheduler.compat.handshakes import Handshakes
from hami.scheduler.decide.door import NodeSeen, Seen
from tests.support.builders import a_device
from tests.support.cores import NoCluster, a_core

REPORTED, REQUESTING = "Reported_1", "Requesting_2026-01-01 00:00:00"
CARD = a_device("DCU-0", vendor="DCU")


class Api(NoCluster):
    """Keeps what was written to nodes; refuses what is older than `newest`."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, str]]] = []
        self.refuses: ApiError | None = None

    async def patch_node(self, name: str, patch: dict[str, Any]) -> Node:
        if self.refuses is not None:
            raise self.refuses
        self.written.append((name, patch["metadata"]["annotations"]))
        return Node()

    async def patch_pod(self, _namespace: str, _name: str, _patch: dict[str, Any]) -> Pod:
        return Pod(metadata=ObjectMeta())


class Watched:
    def __init__(self, handshakes: Handshakes, api: Api, time: ManualClock) -> None:
        self.handshakes, self.api, self.time = handshakes, api, time
        self._seen: NodeSeen | None = None
        self._version = 0

    def sees(self, handshake: str | None, *, known: NodeState | None = None, word: str = "DCU", **more: Any) -> NodeSeen:
        self._version += 1
        what = Seen(devices=(CARD,), handshake=handshake, **more)
        now = NodeSeen(name="n1", uid="u", version=str(self._version), vendors={word: what})
        self.handshakes.saw(self._seen, now, known)
        self._seen = now
        return now

    def passes(self, seconds: float) -> None:
        self.time.advance(round(seconds * 1000))

    async def answers(self, seen: NodeSeen) -> int:
        before = len(self.api.written)
        await self.handshakes.answer({"n1": seen})
        return len(self.api.written) - before


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    time, api = ManualClock(), Api()
    async with a_core(time) as core:
        yield Watched(Handshakes(core, api), api, time)


async def test_a_plugin_is_silent_a_minute_after_its_last_word() -> None:
    async with watched() as at:
        at.sees(REPORTED)
        at.passes(30)
        at.sees(REQUESTING)
        at.sees("Reported_2")
        at.passes(59)
        seen = at.sees(REQUESTING)
        assert at.handshakes.is_silent(seen, "DCU") is False
        at.passes(2)
        assert at.handshakes.is_silent(seen, "DCU") is True
        assert at.handshakes.is_silent(at.sees("Reported_3"), "DCU") is False


async def test_neither_a_question_nor_a_farewell_is_a_word() -> None:
    async with watched() as at:
        at.sees(REPORTED)
        at.passes(61)
        for text in (REQUESTING, None, "Deleted_2026.01.01 00:00:00", "Requesting_2099-01-01 00:00:00"):
            assert at.handshakes.is_silent(at.sees(text), "DCU") is True


async def test_what_the_kubelet_counts_is_there() -> None:
    async with watched() as at:
        at.sees(REQUESTING)
        at.passes(600)
        assert at.handshakes.is_silent(at.sees(REQUESTING, allocatable=3), "DCU") is False
        assert at.handshakes.is_silent(at.sees(REQUESTING, allocatable=0), "DCU") is True


async def test_while_nodes_cannot_be_seen_nobody_falls_silent() -> None:
    async with watched() as at:
        seen = at.sees(REPORTED)
        at.handshakes.blind()
        at.passes(600)
        assert at.handshakes.is_silent(seen, "DCU") is None
        seen = at.sees(REQUESTING)
        assert at.handshakes.is_silent(seen, "DCU") is False
        at.passes(61)
        assert at.handshakes.is_silent(seen, "DCU") is True


async def test_whoever_takes_over_begins_to_count_anew_but_believes_the_log() -> None:
    silent = NodeState(
        name="n1",
        uid="u",
        foreign=(Foreign("DCU"),),
        devices=(DeviceState(device=CARD, health=Health.UNKNOWN),),
    )
    async with watched() as at:
        seen = at.sees(REPORTED)
        at.passes(600)
        at.handshakes.begin()
        assert at.handshakes.is_silent(seen, "DCU") is False
    async with watched() as at:
        seen = at.sees(REQUESTING, known=silent)
        assert at.handshakes.is_silent(seen, "DCU") is True
        at.handshakes.begin()
        assert at.handshakes.is_silent(seen, "DCU") is True
        assert at.handshakes.is_silent(at.sees(REPORTED), "DCU") is False
    async with watched() as at:
        assert at.handshakes.is_silent(at.sees(REPORTED, known=silent), "DCU") is False


async def test_a_vendor_without_a_handshake_is_judged_by_its_page() -> None:
    async with watched() as at:
        assert at.handshakes.is_silent(at.sees(None, word="AMD", capacity=0), "AMD") is True
        assert at.handshakes.is_silent(at.sees(None, word="AMD", capacity=1), "AMD") is False
        at.passes(600)
        assert at.handshakes.is_silent(at.sees(None, word="MLU"), "MLU") is False


async def test_answers_are_paced_and_only_where_one_is_due() -> None:
    async with watched() as at:
        assert await at.answers(at.sees(REPORTED)) == 1
        [(name, notes)] = at.api.written
        assert (name, list(notes)) == ("n1", ["hami.io/node-handshake-dcu"])
        assert await at.answers(at.sees(REQUESTING)) == 0
        assert await at.answers(at.sees("Reported_2")) == 0
        at.passes(15)
        assert await at.answers(at.sees("Reported_2")) == 1
        at.passes(15)
        seen = at.sees("Reported_3")
        gone = replace(seen, vendors={"DCU": replace(seen.vendors["DCU"], announced=False)})
        assert await at.answers(gone) == 0
        assert await at.answers(at.sees(None, word="MLU")) == 0


@pytest.mark.parametrize("code", [409, 500])
async def test_a_node_that_changed_is_looked_at_again_first(code: int) -> None:
    async with watched() as at:
        at.api.refuses = ApiError(code, "", "no")
        seen = at.sees(REPORTED)
        await at.answers(seen)
        at.api.refuses = None
        assert await at.answers(seen) == 0
        at.passes(0 if code == 409 else 15)
        assert await at.answers(at.sees("Reported_2")) == 1


async def test_a_forgotten_node_begins_anew() -> None:
    async with watched() as at:
        assert await at.answers(at.sees(REPORTED)) == 1
        at.handshakes.forget("n1")
        assert await at.answers(at.sees(REPORTED)) == 1
