"""What the log says to this node: its reservations, kept as a book, and handshake requests, answered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import anyio
import msgspec

from hami.domain.allocation import DeviceShare, Phase, PodOwner, Reservation, shares_of, with_instance
from hami.domain.device import MigSlice
from hami.domain.errors import StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
)
from hami.events.catalog.device import DeviceClearRequested
from hami.events.catalog.handshake import DIGEST, HandshakeReported, HandshakeRequested, Held
from hami.events.codec import decode_event
from hami.events.log import NodeFeed
from hami.nodeagent.ports import Publisher
from hami.telemetry import get_logger

log = get_logger("feed")

START: Final = "0-0"
KEPT_ENDS: Final = 1000
RETRY_S: Final = 1.0


class Known(msgspec.Struct, frozen=True):
    reservation: Reservation
    phase: Phase


class ReservationBook:
    """The node's live reservations as the log tells them. `read`: all that the feed held at the start is in."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._ended: dict[str, None] = {}
        self.read = False

    def has(self, reservation: str) -> bool:
        return reservation in self._known

    def add(self, reservation: Reservation) -> None:
        self._known[reservation.id] = Known(reservation, Phase.RESERVED)

    def bound(self, reservation: str) -> None:
        known = self._known.get(reservation)
        if known is not None:
            self._known[reservation] = Known(known.reservation, Phase.BOUND)

    def realised(self, reservation: str, card: str, instance: MigSlice) -> None:
        """Its MIG instance has a name now. The feed does not say so: it was made here."""
        known = self._known.get(reservation)
        if known is not None:
            containers = tuple(with_instance(each, card, instance) for each in known.reservation.containers)
            found = msgspec.structs.replace(known.reservation, containers=containers)
            self._known[reservation] = Known(found, known.phase)

    def drop(self, reservation: str) -> None:
        self._known.pop(reservation, None)
        self._ended[reservation] = None
        if len(self._ended) > KEPT_ENDS:
            del self._ended[next(iter(self._ended))]

    def saw_end(self, reservation: str) -> bool:
        """A feed keeps the newest entries only: one that is not known may have ended, or be too old to be told of."""
        return reservation in self._ended

    def of_pod(self, uid: str) -> Reservation | None:
        """The newest live reservation of a pod."""
        return next((each for each in self._newest_first() if each.owner.uid == uid), None)

    def of_name(self, namespace: str, name: str) -> Reservation | None:
        return next(
            (each for each in self._newest_first() if (each.owner.namespace, each.owner.name) == (namespace, name)), None
        )

    def _newest_first(self) -> Iterator[Reservation]:
        return (known.reservation for known in reversed(self._known.values()) if isinstance(known.reservation.owner, PodOwner))

    def bound_pods(self) -> tuple[Reservation, ...]:
        """Bound and not ended, oldest first."""
        return tuple(
            known.reservation
            for known in self._known.values()
            if known.phase is Phase.BOUND and isinstance(known.reservation.owner, PodOwner)
        )

    def tenants(self, uuid: str) -> tuple[str, ...]:
        """Uids of the owners that hold a share of a card, or that MIG instance, and may be running."""
        return tuple(
            known.reservation.owner.uid
            for known in self._known.values()
            if known.phase is Phase.BOUND and any(_holds(share, uuid) for share in shares_of(known.reservation.containers))
        )

    def likely_cards(self, size: int, served: Callable[[str, str], bool]) -> tuple[str, ...]:
        """The cards of a bound container of that size which has not been served yet: a hint, right or not."""
        for known in self._known.values():
            if known.phase is not Phase.BOUND:
                continue
            for container in known.reservation.containers:
                if len(container.shares) == size and not served(known.reservation.owner.uid, container.name):
                    return tuple(share.uuid for share in container.shares)
        return ()


class Voice(Protocol):
    """What the node answers to the control plane."""

    def report(self) -> HandshakeReported:
        """The answer to a handshake, its nonce left to whoever answers."""
        ...

    def tell_again(self, devices: Sequence[str]) -> None:
        """The device set once more, and the health of these cards."""
        ...

    def recall(self, held: Mapping[str, Held]) -> None:
        """What the log holds against the cards; whoever has a record of its own passes it over."""
        ...

    def clear(self, request: str, wanted: DeviceClearRequested) -> None:
        """Forget what is held against a card. `request` is the event's id: one that was answered before is passed over."""
        ...


class FeedReader:
    """Follows the feed from its start, so that a restarted agent knows its reservations again.

    `on_reservation` is called when a reservation has arrived, `on_change` when one was bound or has ended, or all is read.
    """

    def __init__(
        self,
        feed: NodeFeed,
        book: ReservationBook,
        publisher: Publisher,
        *,
        voice: Voice,
        clock: Callable[[], EpochMs],
        patience_ms: int = 60_000,
        on_reservation: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._feed, self._book, self._publisher = feed, book, publisher
        self._voice, self._clock, self._patience_ms = voice, clock, patience_ms
        self._on_reservation, self._on_change = on_reservation, on_change
        self.answered_at: float | None = None
        """When a handshake was last answered, by the loop's clock; None = not in this life."""

    async def run(self) -> None:
        """For ever. With the store away, or not to be used, nothing new is known; what is known stays."""
        at = START
        while True:
            try:
                async for batch in self._feed.tail(at):
                    if not batch and not self._book.read:
                        self._book.read = True
                        self._on_change()
                    for entry, envelope in batch:
                        self._on(envelope.id, decode_event(envelope))
                        at = entry
            except (StoreUnavailable, StoreUnsafe) as error:
                log.warning("feed not readable", error=str(error))
                await anyio.sleep(RETRY_S)

    def _on(self, name_of_event: str, event: object) -> None:
        match event:
            case AllocationReserved(reservation=reservation):
                self._book.add(reservation)
                self._on_reservation()
            case AllocationBound(reservation=name):
                self._book.bound(name)
                self._on_change()
            case AllocationReleased(reservation=name) | AllocationLapsed(reservation=name) | AllocationFailed(reservation=name):
                self._book.drop(name)
                self._on_change()
            case HandshakeRequested():
                self._answer(event)
            case DeviceClearRequested():
                self._voice.clear(name_of_event, event)
            case _:
                log.info("feed entry passed over", kind=type(event).__name__)

    def _answer(self, request: HandshakeRequested) -> None:
        """Requests long past their deadline are not answered again after a restart. A gap in what was seen is filled first."""
        if request.deadline_ms and self._clock() > request.deadline_ms + self._patience_ms:
            return
        if request.seen_epoch:
            self._publisher.resend(request.seen_epoch, request.seen_seq)
        if request.held is not None and self._book.read:  # asked in this life, so with all that an earlier one reported
            self._voice.recall(request.held)
        if request.why == DIGEST:
            self._voice.tell_again(request.devices)
        answer = msgspec.structs.replace(self._voice.report(), nonce=request.nonce)
        self._publisher.publish(answer)
        self.answered_at = anyio.current_time()


def _holds(share: DeviceShare, uuid: str) -> bool:
    return uuid == share.uuid or (share.mig is not None and uuid == share.mig.uuid)
