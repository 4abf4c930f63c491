"""The board: which devices this node offers and how they are, as the kubelet is told. State here, streams elsewhere."""

from collections.abc import AsyncIterator, Iterable

import anyio
import msgspec


class Offer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One device on the board. It is listed to the kubelet as `slots` devices named `<uuid>-<i>`.

    A MIG instance is listed once, by its own name (`plain`). `resource` is empty for the node's main one.
    """

    uuid: str
    slots: int
    healthy: bool = True
    numa: int = -1
    resource: str = ""
    plain: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        if self.plain:
            return (self.uuid,)
        return tuple(f"{self.uuid}-{at}" for at in range(self.slots))


class Watch:
    """One reader of the board. Yields the list now and after every change; a slow reader gets the latest, not every one."""

    def __init__(self, board: "Board") -> None:
        self._board = board
        self._wake = anyio.Event()
        self._ended = False

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        """The reader's loop ends at once, so that its stream does not hold up a stop."""
        self._ended = True
        self._wake.set()

    async def listings(self) -> AsyncIterator[tuple[Offer, ...]]:
        while not self._ended:
            self._wake = anyio.Event()
            yield self._board.offers
            if not self._ended:
                await self._wake.wait()


class Board:
    """Single writer (the agent's loop), any number of watches."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        self._watches: set[Watch] = set()

    @property
    def offers(self) -> tuple[Offer, ...]:
        return tuple(self._offers.values())

    def show(self, offers: Iterable[Offer]) -> None:
        """Replace the whole list; nobody is woken when nothing changed."""
        new = {offer.uuid: offer for offer in offers}
        if list(new.values()) != list(self._offers.values()):
            self._offers = new
            self._ring()

    def mark(self, uuid: str, *, healthy: bool) -> None:
        """Change one card; unknown cards are passed over (they are not offered)."""
        offer = self._offers.get(uuid)
        if offer is not None and offer.healthy is not healthy:
            self._offers[uuid] = msgspec.structs.replace(offer, healthy=healthy)
            self._ring()

    def again(self) -> None:
        """Something that is read beside the board has changed: every reader looks once more."""
        self._ring()

    def watch(self) -> Watch:
        made = Watch(self)
        self._watches.add(made)
        return made

    def forget(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def _ring(self) -> None:
        for watch in self._watches:
            watch.wake()
