"""What the log says to this node: its reservations, kept as a book, and handshake requests, answered."""

from collections.abc import Callable, Iterator
from typing import Final

import anyio
import msgspec

from hami.domain.allocation import Phase, PodOwner, Reservation
from hami.domain.errors import StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.catalog.allocation import (
    AllocationBound,
    AllocationFailed,
    AllocationLapsed,
    AllocationReleased,
    AllocationReserved,
)
from hami.events.catalog.handshake import HandshakeReported, HandshakeRequested
from hami.events.codec import decode_event
from hami.events.log import NodeFeed
from hami.nodeagent.ports import Publisher
from hami.telemetry import get_logger

log = get_logger("feed")

START: Final = "0-0"
RETRY_S: Final = 1.0


class Known(msgspec.Struct, frozen=True):
    reservation: Reservation
    phase: Phase


class ReservationBook:
    """The node's live reservations as the log tells them."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def add(self, reservation: Reservation) -> None:
        self._known[reservation.id] = Known(reservation, Phase.RESERVED)

    def bound(self, reservation: str) -> None:
        known = self._known.get(reservation)
        if known is not None:
            self._known[reservation] = Known(known.reservation, Phase.BOUND)

    def drop(self, reservation: str) -> None:
        self._known.pop(reservation, None)

    def of_pod(self, uid: str) -> Reservation | None:
        """The newest live reservation of a pod."""
        return next((each for each in self._newest_first() if each.owner.uid == uid), None)

    def of_name(self, namespace: str, name: str) -> Reservation | None:
        return next(
            (each for each in self._newest_first() if (each.owner.namespace, each.owner.name) == (namespace, name)), None
        )

    def _newest_first(self) -> Iterator[Reservation]:
        return (known.reservation for known in reversed(self._known.values()) if isinstance(known.reservation.owner, PodOwner))

    def likely_cards(self, size: int, served: Callable[[str, str], bool]) -> tuple[str, ...]:
        """The cards of a bound container of that size which has not been served yet: a hint, right or not."""
        for known in self._known.values():
            if known.phase is not Phase.BOUND:
                continue
            for container in known.reservation.containers:
                if len(container.shares) == size and not served(known.reservation.owner.uid, container.name):
                    return tuple(share.uuid for share in container.shares)
        return ()


class FeedReader:
    """Follows the feed from its start, so that a restarted agent knows its reservations again."""

    def __init__(
        self,
        feed: NodeFeed,
        book: ReservationBook,
        publisher: Publisher,
        *,
        report: Callable[[], HandshakeReported],
        clock: Callable[[], EpochMs],
        patience_ms: int = 60_000,
    ) -> None:
        self._feed, self._book, self._publisher = feed, book, publisher
        self._report, self._clock, self._patience_ms = report, clock, patience_ms

    async def run(self) -> None:
        """For ever. With the store away, or not to be used, nothing new is known; what is known stays."""
        at = START
        while True:
            try:
                async for batch in self._feed.tail(at):
                    for entry, envelope in batch:
                        self._on(decode_event(envelope))
                        at = entry
            except (StoreUnavailable, StoreUnsafe) as error:
                log.warning("feed not readable", error=str(error))
                await anyio.sleep(RETRY_S)

    def _on(self, event: object) -> None:
        match event:
            case AllocationReserved(reservation=reservation):
                self._book.add(reservation)
            case AllocationBound(reservation=name):
                self._book.bound(name)
            case AllocationReleased(reservation=name) | AllocationLapsed(reservation=name) | AllocationFailed(reservation=name):
                self._book.drop(name)
            case HandshakeRequested():
                self._answer(event)
            case _:
                log.info("feed entry passed over", kind=type(event).__name__)

    def _answer(self, request: HandshakeRequested) -> None:
        """Requests long past their deadline are not answered again after a restart. A gap in what was seen is filled first."""
        if request.deadline_ms and self._clock() > request.deadline_ms + self._patience_ms:
            return
        if request.seen_epoch:
            self._publisher.resend(request.seen_epoch, request.seen_seq)
        answer = msgspec.structs.replace(self._report(), nonce=request.nonce)
        self._publisher.publish(answer)
