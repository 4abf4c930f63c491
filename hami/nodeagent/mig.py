"""Cutting cards for reservations: what is bound here gets its MIG instance, what nobody holds any more is destroyed.

    bound in the log --> remember --> GPU instance --> compute instance --> remember --> told --> (bind goes on)
                              '--- a step fails: what this try made is taken away again, the log hears why

Each step is safe to die after. What is remembered before the first one says whose the cut is; a half-made one is completed or
destroyed by the next life, whichever its reservation wants by then.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from hami.domain.device import Device, MigSlice
from hami.domain.errors import DeviceUnavailable
from hami.events.catalog.device import MigApplyFailed, MigInstanceCreated, MigInstanceDestroyed
from hami.nodeagent.backends.base import MigBackend
from hami.nodeagent.decide.mig import Failed, Instance, Owned, Place, Wanted, plan, wanted
from hami.nodeagent.feed import ReservationBook
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("mig")

TRIES: Final = 3
"""Passes that may fail before the log hears of it: a process that is just ending holds its instance for a moment."""


class MigTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between looks: when all is well, and while something could not be done."""

    look_s: float = 5.0
    retry_s: float = 0.5


class MigKeeper:
    """Owner of the cuts of this node's cards. `wake` when a reservation was bound or has ended.

    `cards` are those offered for cutting, `off` those that wait for their mode (`on_mode`: one has got it). `on_cut` is called
    before the cluster hears of an instance, so that a container's runtime knows its name by then, `on_gone` when it is gone.
    """

    def __init__(
        self,
        backend: MigBackend,
        book: ReservationBook,
        memory: StateFile,
        publisher: Publisher,
        *,
        cards: Callable[[], Sequence[Device]],
        off: Callable[[], Sequence[Device]] = lambda: (),
        on_mode: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
        on_cut: Callable[[Sequence[Instance]], None] = lambda _: None,
        on_gone: Callable[[str], None] = lambda _: None,
        saved: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
        timing: MigTiming | None = None,
    ) -> None:
        self._backend, self._book, self._memory, self._publisher = backend, book, memory, publisher
        self._cards, self._off, self._on_mode = cards, off, on_mode
        self._on_cut, self._on_gone, self._timing = on_cut, on_gone, timing or MigTiming()
        self._saved = saved
        self._told: set[Place] = set()
        self._failures: dict[tuple[str, Place], int] = {}
        self._said: set[tuple[Place, str]] = set()
        self._wake = anyio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever. Nothing is made or destroyed before the node's reservations are known."""
        while True:
            self._wake = anyio.Event()
            try:
                well = await self.look()
            except DeviceUnavailable as error:
                log.warning("cards cannot be cut", error=str(error))
                well = False
            with anyio.move_on_after(self._timing.look_s if well else self._timing.retry_s):
                await self._wake.wait()

    async def look(self) -> bool:
        """1 mode, 2 what is there, 3 what is wanted, 4 destroy, 5 complete and make, 6 tell. False when a making failed.

        A destroying that fails has time: whoever wants the place makes it be tried again at once.
        """
        if not self._book.read:
            return True
        await self._switch_on()
        cards = {card.uuid for card in self._cards()}
        found = await self._backend.inventory()
        there = [each for each in found.instances if each.card in cards and each.card not in found.unavailable]
        owned = {each.place: each for each in self._memory.state.mig}
        asked = wanted(self._book.bound_pods(), owned, self._is_live)
        do = plan(there, asked, owned, lambda place: place in self._told or self._was_told(place))
        self._forget(asked, there)
        self._say_foreign(do.foreign)
        for each in do.destroy:
            await self._destroy(each)
        made = [await self._finish(wish, instance, undo=self._backend.drop_gpu_instance) for wish, instance in do.complete]
        made += [await self._make(wish) for wish in do.make]
        for mine in self._memory.state.mig:
            self._book.realised(mine.reservation, mine.card, mine.slice)
        for wish, instance in do.tell:
            self._tell(wish, instance)
        self._settle()
        return all(made)

    async def _switch_on(self) -> None:
        """Cards that are to be cut and are not in MIG mode. One that somebody holds waits until it is idle."""
        for card in self._off():
            if self._book.tenants(card.uuid):
                continue
            why = await self._backend.enable_mig(card.uuid)
            if not why:
                log.info("MIG mode switched on", device=card.uuid)
                await self._on_mode()
            elif self._is_new(Place(card.uuid, "", 0, 0), why):
                log.warning("MIG mode cannot be switched on", device=card.uuid, why=why)

    async def _make(self, wish: Wanted) -> bool:
        self._remember(wish, wish.slice.uuid)
        await self._saved()  # a life that ends after this must find what it began
        log.info("MIG instance wanted", device=wish.card, profile=wish.slice.profile, reservation=wish.reservation)
        made = await self._backend.make_gpu_instance(wish.card, wish.slice.profile, wish.slice.placement)
        if isinstance(made, Failed):
            return self._failed(wish, made.why)
        log.info("MIG GPU instance made", device=wish.card, profile=wish.slice.profile, gpu_instance=made.gpu_instance)
        return await self._finish(wish, made, undo=self._take_away)

    async def _finish(self, wish: Wanted, instance: Instance, *, undo: Callable[[Instance], Awaitable[str]]) -> bool:
        """What an earlier life began is undone only if it is bare: it may only have looked so for a moment."""
        made = await self._backend.make_compute_instance(instance)
        if isinstance(made, Failed):
            await undo(instance)
            return self._failed(wish, made.why)
        log.info("MIG compute instance made", device=wish.card, profile=wish.slice.profile, instance=made.uuid)
        self._tell(wish, made)
        return True

    def _tell(self, wish: Wanted, instance: Instance) -> None:
        """1 the runtime, 2 memory, 3 the log. A name that differs from the one told before is the library's doing: say so."""
        if wish.slice.uuid and wish.slice.uuid != instance.uuid:
            log.warning("MIG instance has another name now", was=wish.slice.uuid, instance=instance.uuid)
        self._on_cut([instance])
        self._remember(wish, instance.uuid)
        self._book.realised(wish.reservation, wish.card, instance.slice)
        event = MigInstanceCreated(
            device=wish.card,
            instance=instance.slice,
            reservation=wish.reservation,
            gpu_instance=instance.gpu_instance,
            compute_instance=instance.compute_instance,
        )
        self._publisher.publish(event, subject=instance.uuid)
        self._told.add(wish.place)
        self._failures.pop((wish.reservation, wish.place), None)
        log.info("MIG instance told", device=wish.card, instance=instance.uuid, reservation=wish.reservation)

    async def _destroy(self, instance: Instance) -> None:
        why = await self._take_away(instance)
        if why:
            if self._is_new(instance.place, f"destroy: {why}"):
                log.warning("MIG instance cannot be destroyed yet", device=instance.card, instance=instance.uuid, why=why)
            return
        mine = next((each for each in self._memory.state.mig if each.place == instance.place), None)
        ended = "its reservation has ended" if mine is not None else "nobody's"
        self._drop_owned({instance.place})
        self._on_gone(instance.uuid)
        self._said = {key for key in self._said if key[0] != instance.place}
        event = MigInstanceDestroyed(device=instance.card, instance=instance.slice, why=ended)
        self._publisher.publish(event, subject=instance.uuid or instance.card)
        log.info("MIG instance destroyed", device=instance.card, instance=instance.uuid, profile=instance.profile, why=ended)

    async def _take_away(self, instance: Instance) -> str:
        why = await self._backend.drop_compute_instances(instance)
        if why:
            return why
        log.info("MIG compute instance gone", device=instance.card, gpu_instance=instance.gpu_instance)
        return await self._backend.drop_gpu_instance(instance)

    def _failed(self, wish: Wanted, why: str) -> bool:
        """The log hears of it once, and not before it was tried again: then bind gives up and the pod is placed anew."""
        key = wish.reservation, wish.place
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] == TRIES:
            log.warning("MIG instance cannot be made", device=wish.card, profile=wish.slice.profile, why=why)
            failed = MigApplyFailed(device=wish.card, instance=wish.slice, error=why, reservation=wish.reservation)
            self._publisher.publish(failed, subject=wish.card)
        return False

    # what is remembered

    def _is_live(self, reservation: str) -> bool:
        """In the book, or held by a container of which the feed does not tell any more."""
        if self._book.has(reservation):
            return True
        served = any(each.reservation == reservation for each in self._memory.state.served.values())
        return served and not self._book.saw_end(reservation)

    def _was_told(self, place: Place) -> bool:
        return any(each.told for each in self._memory.state.mig if each.place == place)

    def _remember(self, wish: Wanted, uuid: str) -> None:
        now = Owned(
            card=wish.card, slice=MigSlice(wish.slice.profile, wish.slice.placement, uuid), reservation=wish.reservation
        )
        others = tuple(each for each in self._memory.state.mig if each.place != wish.place)
        if (*others, now) != self._memory.state.mig:
            self._memory.state.mig = (*others, now)
            self._memory.save()

    def _settle(self) -> None:
        """Once the publisher has got rid of everything, what this life told is told."""
        untold = {each.place for each in self._memory.state.mig if not each.told and each.place in self._told}
        if untold and self._publisher.state.idle:
            self._memory.state.mig = tuple(
                msgspec.structs.replace(each, told=True) if each.place in untold else each for each in self._memory.state.mig
            )
            self._memory.save()

    def _forget(self, asked: Iterable[Wanted], there: Sequence[Instance]) -> None:
        """An intention whose reservation has ended before anything was made of it."""
        waiting = {(each.reservation, each.place) for each in asked}
        self._failures = {key: count for key, count in self._failures.items() if key in waiting}
        kept = {place for _, place in waiting} | {each.place for each in there}
        gone = {each.place for each in self._memory.state.mig} - kept
        if gone:
            self._drop_owned(gone)

    def _drop_owned(self, places: set[Place]) -> None:
        self._told -= places
        self._memory.state.mig = tuple(each for each in self._memory.state.mig if each.place not in places)
        self._memory.save()

    def _say_foreign(self, foreign: Sequence[Instance]) -> None:
        for each in foreign:
            if self._is_new(each.place, "foreign"):
                log.warning("MIG instance of somebody else is in use, left alone", device=each.card, instance=each.uuid)

    def _is_new(self, place: Place, what: str) -> bool:
        key = place, what
        new = key not in self._said
        self._said.add(key)
        return new
