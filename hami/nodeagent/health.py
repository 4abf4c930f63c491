"""Watching the cards: reports of the backend -> decide -> board first, memory second, events last.

The kubelet must know before anybody else, with or without a store; what is remembered outlives this process.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import anyio
import msgspec

from hami.domain.device import Health
from hami.domain.errors import DeviceUnavailable
from hami.domain.units import EpochMs
from hami.events.catalog.device import DeviceHealthChanged, FaultObserved
from hami.events.catalog.device import FaultKind as EventKind
from hami.events.catalog.handshake import Held
from hami.nodeagent.backends.base import DeviceBackend
from hami.nodeagent.board import Board
from hami.nodeagent.decide.counters import remembered, shown
from hami.nodeagent.decide.faults import CardHealth, Counters, Fault, FaultKind, HealthTransition, Observation, Piece
from hami.nodeagent.decide.health import (
    HealthPolicy,
    acknowledge,
    hangs_library,
    kubelet_healthy,
    observe,
    reaches_linked,
    reaches_node,
    recalled,
    recover,
)
from hami.nodeagent.decide.spread import spread
from hami.nodeagent.decide.topology import linked
from hami.nodeagent.decide.xid_policy import XID_RULES
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("health")

KEPT_CLEARS: Final = 256
"""More than a feed holds of them before it is trimmed."""

_EVENT_KIND: Final[dict[FaultKind, EventKind]] = {
    FaultKind.XID: EventKind.XID,
    FaultKind.ECC_DOUBLE_BIT: EventKind.ECC,
    FaultKind.POISON_FATAL: EventKind.ECC,
    FaultKind.POISON_CONTAINED: EventKind.ECC,
    FaultKind.GPU_LOST: EventKind.GPU_LOST,
    FaultKind.GPU_UNAVAILABLE: EventKind.GPU_LOST,
    FaultKind.RETIREMENT_FAILURE: EventKind.ROW_REMAP,
    FaultKind.RECOVERY_ACTION: EventKind.RECOVERY_ACTION,
    FaultKind.RESET_REQUIRED: EventKind.RECOVERY_ACTION,
    FaultKind.UNREACHABLE: EventKind.PROBE,
    FaultKind.ECC_UNCORRECTED: EventKind.ECC,
    FaultKind.SRAM_THRESHOLD: EventKind.ECC,
    FaultKind.ROW_REMAPPED: EventKind.ROW_REMAP,
    FaultKind.REMAP_PENDING: EventKind.ROW_REMAP,
    FaultKind.UNREPAIRABLE: EventKind.ROW_REMAP,
}


class HealthTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `retry_s`: pause before a library that failed is asked again."""

    wait_s: float = 5.0
    poll_s: float = 30.0
    retry_s: float = 5.0


class HealthWatch:
    """Owner of the cards' health on this node. `health_of` is what registration carries.

    `tenants`: who holds a card or an instance, as far as is known, so that a broken program is told from a broken card.
    `present`: what there is on the node, offered or not; `pieces`: what is cut out of a card, for reports that do not say.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        board: Board,
        memory: StateFile,
        publisher: Publisher,
        *,
        policy: HealthPolicy,
        boot_id: str,
        clock: Callable[[], EpochMs],
        timing: HealthTiming | None = None,
        tenants: Callable[[str], tuple[str, ...]] = lambda _: (),
        present: Callable[[], Collection[str]] = tuple,
        pieces: Callable[[str], tuple[Piece, ...]] = lambda _: (),
    ) -> None:
        self._backend, self._board, self._memory, self._publisher = backend, board, memory, publisher
        self._policy, self._boot_id, self._clock = policy, boot_id, clock
        self._timing, self._tenants, self._present = timing or HealthTiming(), tenants, present
        self._pieces = pieces
        self._unmonitored: dict[str, str] = {}
        self._nobodys: set[tuple[FaultKind, int]] = set()
        self.reports: Counter[tuple[str, str, int]] = Counter()
        """How often each (card, kind, XID) was reported in this life, repeats within a burst too."""

    def health_of(self, uuid: str) -> Health:
        card = self._memory.state.cards.get(uuid)
        return Health.HEALTHY if card is None else card.health

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Cards whose record is lost and of which the log has not told yet."""
        return tuple(uuid for uuid, card in self._memory.state.cards.items() if card.forgotten)

    def is_missing(self, uuid: str) -> bool:
        """Whether it is on record already that the card is gone."""
        return any(fault.kind is FaultKind.GPU_LOST for fault in self._card(uuid).faults)

    def forget(self, uuids: Iterable[str]) -> None:
        """With the record lost, a card without one is neither well nor sick."""
        state = self._memory.state
        if state.lost:
            for uuid in uuids:
                state.cards.setdefault(uuid, CardHealth(uuid=uuid, forgotten=state.lost))

    def recall(self, uuids: Iterable[str], held: Mapping[str, Held]) -> None:
        """What the log holds against these cards counts where nothing is remembered here; from then on the record does."""
        state = self._memory.state
        if not (state.lost or state.young):
            return
        log.warning("the log's word is taken for what was remembered here", held=sorted(held))
        for uuid in uuids:
            said = held.get(uuid, Held(Health.HEALTHY))
            before = self._card(uuid)
            seen = recalled(before, said.health, said.reason, self._policy, now=self._clock(), boot_id=self._boot_id)
            self._tell(before, seen, None)
        state.lost, state.young = "", False
        self._memory.save()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen)
            tasks.start_soon(self._poll)

    def report(self, fault: Fault) -> None:
        """One report, decided and told, in one go."""
        if not fault.uuid:
            self._without_card(fault)
            return
        if not fault.pieces:
            fault = msgspec.structs.replace(fault, pieces=self._pieces(fault.uuid))
        for number, each in enumerate(spread(fault, self._policy)):
            self._decide(msgspec.structs.replace(each, workloads=self._tenants(each.uuid)), on_record=number == 0)
        if reaches_node(fault, self._policy):
            for offer in self._board.offers:
                if offer.uuid != fault.uuid:
                    self._decide(msgspec.structs.replace(fault, uuid=offer.uuid, detail=f"seen on {fault.uuid}"))
        elif reaches_linked(fault, self._policy):
            for uuid in linked(self._memory.state.seen, fault.uuid):
                self._decide(Fault(uuid=uuid, kind=FaultKind.PEER_LINK, detail=f"{fault.uuid} has a link fault"))

    async def probe(self, uuid: str) -> None:
        """Ask one card: its state may be a fault by itself, or the evidence that old faults are over."""
        evidence, faults = await self._backend.probe(uuid)
        faults = (*faults, *shown(uuid, self._card(uuid).counters, evidence.counters))
        for fault in faults:
            self.report(fault)
        self._count(uuid, evidence.counters)
        if evidence.probe_passed and self._card(uuid).unreachable:
            self.report(Fault(uuid=uuid, kind=FaultKind.ANSWERS_AGAIN))
        if not faults and uuid not in self._unmonitored:
            card, proof = self._card(uuid), msgspec.structs.replace(evidence, boot_id=self._boot_id)
            self._tell(card, recover(card, proof, self._policy, now=self._clock()), None)

    async def probe_all(self) -> None:
        """What is offered, and what is not but has a fault: a card that is cut, an instance made for one pod."""
        offered = [offer.uuid for offer in self._board.offers]
        sick = {uuid for uuid, card in self._memory.state.cards.items() if card.faults or card.unreachable}
        for uuid in (*offered, *sorted(sick.intersection(self._present()).difference(offered))):
            try:
                await self.probe(uuid)
            except DeviceUnavailable as error:
                log.warning("card cannot be probed", device=uuid, error=str(error))

    def drop(self, uuid: str) -> bool:
        """A MIG instance is gone for good; a later one may get its name. True if anything was known against it."""
        known = self._memory.state.cards.pop(uuid, None)
        if known is not None:
            self._memory.save()
        return known is not None and bool(known.faults or known.unreachable)

    def unmonitored(self, cards: dict[str, str]) -> None:
        """Cards whose faults will not be heard: neither sick nor proven well. Told once for each reason."""
        for uuid, why in cards.items():
            if self._unmonitored.get(uuid) != why:
                log.warning("card is not monitored", device=uuid, why=why)
                self._publisher.publish(FaultObserved(device=uuid, kind=EventKind.UNMONITORED, detail=why), subject=uuid)
        self._unmonitored = dict(cards)

    def clear(self, request: str, uuid: str, actor: str, why: str) -> None:
        """An operator's word: 1 forget, 2 remember that this request was answered, 3 answer, changed or not.

        The feed is read from its start after a restart: an old request must not forgive a later fault.
        """
        state = self._memory.state
        if request in state.cleared:
            return
        before = self._card(uuid)
        seen = acknowledge(before, actor, self._policy)
        state.cleared = (*state.cleared, request)[-KEPT_CLEARS:]
        state.cards[uuid] = seen.card
        self._board.mark(uuid, healthy=kubelet_healthy(seen.card.health))
        self._memory.save()
        log.warning("cleared by an operator", device=uuid, actor=actor, why=why)
        said = DeviceHealthChanged(
            device=uuid,
            was=before.health,
            now=seen.card.health,
            reason=why,
            evidence=f"declared good by {actor}" + (f", had {before.reason}" if before.reason else ""),
            policy_version=self._policy.version,
            actor=actor,
        )
        self._publisher.publish(said, subject=uuid)

    def tell_again(self, uuid: str) -> None:
        """The log has another health for this card than this node does."""
        card = self._card(uuid)
        said = DeviceHealthChanged(
            device=uuid,
            was=Health.UNKNOWN,
            now=card.health,
            reason=card.reason,
            evidence="as the node remembers it; the log had it differently",
            policy_version=self._policy.version,
        )
        self._publisher.publish(said, subject=uuid)

    async def _listen(self) -> None:
        while True:
            try:
                for fault in await self._backend.wait_faults(self._timing.wait_s):
                    self.report(fault)
            except DeviceUnavailable as error:
                await self._library_failed(str(error))
                await anyio.sleep(self._timing.retry_s)

    async def _library_failed(self, why: str) -> None:
        """Nothing is known of any card then. That is no fault of theirs, and no proof of health either."""
        log.warning("device library failed", error=why)
        hung = next((uuid for uuid, card in self._memory.state.cards.items() if hangs_library(card)), "")
        for offer in self._board.offers:
            if hung:
                self._decide(
                    Fault(uuid=offer.uuid, kind=FaultKind.GPU_UNAVAILABLE, detail=f"library hangs since {hung} failed")
                )
            self.report(Fault(uuid=offer.uuid, kind=FaultKind.UNREACHABLE, detail="the device library does not answer"))
        with contextlib.suppress(DeviceUnavailable):
            await self._backend.close()
        with contextlib.suppress(DeviceUnavailable):
            await self._backend.open()

    async def _poll(self) -> None:
        """Levels hold without any event, so they are read at the start and then on a timer."""
        while True:
            await self.probe_all()
            await anyio.sleep(self._timing.poll_s)

    def _decide(self, fault: Fault, *, on_record: bool = True) -> None:
        self._tally(fault)
        card = self._card(fault.uuid)
        seen = observe(card, fault, self._policy, now=self._clock(), boot_id=self._boot_id)
        self._tell(card, seen, fault, on_record=on_record)

    def _tally(self, fault: Fault) -> None:
        if fault.kind not in {FaultKind.ANSWERS_AGAIN, FaultKind.PEER_LINK}:
            self.reports[fault.uuid, fault.kind.value, fault.code if fault.kind is FaultKind.XID else 0] += 1

    def _card(self, uuid: str) -> CardHealth:
        return self._memory.state.cards.get(uuid) or CardHealth(uuid=uuid)

    def _count(self, uuid: str, now: Counters) -> None:
        card = self._card(uuid)
        kept = remembered(card.counters, now)
        if kept != card.counters:
            self._memory.state.cards[uuid] = msgspec.structs.replace(card, counters=kept)
            self._memory.save()

    def _without_card(self, fault: Fault) -> None:
        """A report that no card owns up to: on record once, condemns nobody."""
        self._tally(fault)
        key = fault.kind, fault.code
        if key not in self._nobodys:
            self._nobodys.add(key)
            log.warning("fault without a card", kind=fault.kind.value, code=fault.code, detail=fault.detail)
            self._publisher.publish(_event(fault))

    def _tell(self, before: CardHealth, seen: Observation, fault: Fault | None, *, on_record: bool = True) -> None:
        """1 board (kubelet), 2 memory, 3 events."""
        if seen.card == before:
            return
        uuid = seen.card.uuid
        self._board.mark(uuid, healthy=kubelet_healthy(seen.card.health))
        self._memory.state.cards[uuid] = seen.card
        if seen.fresh or seen.transition is not None or fault is None:
            self._memory.save()
        if fault is not None and seen.fresh and on_record:
            self._publisher.publish(_event(fault), subject=uuid)
        if seen.transition is not None:
            self._publisher.publish(_changed(seen.transition), subject=uuid)


def _event(fault: Fault) -> FaultObserved:
    code = fault.recovery_action if fault.kind is FaultKind.RECOVERY_ACTION else fault.code
    return FaultObserved(
        device=fault.uuid,
        kind=_EVENT_KIND[fault.kind],
        code=code or 0,
        detail=_in_words(fault),
        gpu_instance=fault.gpu_instance,
        compute_instance=fault.compute_instance,
    )


def _in_words(fault: Fault) -> str:
    """The event has kind and code; this says what they do not: the XID's name, and what the source said."""
    rule = XID_RULES.get(fault.code)
    name = (rule.name if rule else "not in the table") if fault.kind is FaultKind.XID else fault.kind.value
    return ": ".join(part for part in (name, fault.detail) if part)


def _changed(transition: HealthTransition) -> DeviceHealthChanged:
    return DeviceHealthChanged(
        device=transition.uuid,
        was=transition.before,
        now=transition.after,
        reason=transition.reason,
        evidence=transition.evidence,
        policy_version=transition.policy_version,
    )
