"""Delivery in order: Allocate answered for one container, from the reservations that the log told this node of."""

from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from hami.domain.device import Device
from hami.nodeagent.decide.container import ContainerEdits
from hami.nodeagent.decide.listing import Card, card_of
from hami.nodeagent.decide.ordered import Refusal, Waiting, whose
from hami.nodeagent.feed import ReservationBook
from hami.telemetry import get_logger

log = get_logger("ordered")

WAIT_S: Final = 2.0
"""How long a call may wait for its reservation to arrive. Longer would hold up every other pod of the node."""

_POLL_S: Final = 0.02


class Specific(msgspec.Struct, frozen=True, kw_only=True):
    """One container's own answer."""

    edits: ContainerEdits
    cache_dir: str
    waiting: Waiting


class OrderedDelivery:
    """`answer` is called by Allocate. `edits` makes an answer from shares: (number, waiting, its cards) -> (edits, folder).

    `answered` are the containers that hold an answer which the kubelet has not shown as kept yet, by the answer's number.
    """

    def __init__(
        self,
        book: ReservationBook,
        edits: Callable[[int, Waiting, Sequence[Card]], tuple[ContainerEdits, str]],
        *,
        vendor: str,
        is_served: Callable[[str, str], bool],
        devices: Callable[[], Sequence[Device]],
        by_index: bool,
        wait_s: float = WAIT_S,
    ) -> None:
        self._book, self._edits, self._is_served, self._devices = book, edits, is_served, devices
        self._vendor, self._by_index, self._wait_s = vendor, by_index, wait_s
        self.answered: dict[int, Waiting] = {}

    async def answer(self, number: int, device_ids: Sequence[str]) -> Specific | Refusal:
        """1 who waits, 2 whose call is it, 3 what do they get. Only an empty book is worth a moment's wait."""
        found = whose(self._waiting(), len(device_ids))
        deadline = anyio.current_time() + self._wait_s
        while isinstance(found, Refusal) and not self._waiting() and anyio.current_time() < deadline:
            await anyio.sleep(_POLL_S)
            found = whose(self._waiting(), len(device_ids))
        if isinstance(found, Refusal):
            log.warning("Allocate refused", why=found.why, devices=len(device_ids))
            return found
        self.answered[number] = found
        edits, cache_dir = self._edits(number, found, self._cards(found))
        log.info("Allocate answered", reservation=found.reservation, container=found.container, number=number)
        return Specific(edits=edits, cache_dir=cache_dir, waiting=found)

    def given_to(self, number: int, owner_uid: str) -> str:
        """The kubelet shows who holds an answer. In words what is wrong; empty when it is whom it was meant for."""
        meant = self.answered.pop(number, None)
        if meant is None or meant.owner_uid == owner_uid:
            return ""
        log.error("an answer went to another pod", meant_for=meant.owner_uid, went_to=owner_uid, reservation=meant.reservation)
        return f"holds the devices of reservation {meant.reservation}, which is another pod's"

    def take_back(self, numbers: Sequence[int]) -> None:
        """The kubelet never got these answers, or did not keep them: their containers wait again."""
        for number in numbers:
            self.answered.pop(number, None)

    def _waiting(self) -> list[Waiting]:
        """Of each bound pod the first container that has no answer: the kubelet takes them in their order."""
        taken = {(each.reservation, each.container) for each in self.answered.values()}
        found = []
        for reservation in self._book.bound_pods():
            uid = reservation.owner.uid
            for container in reservation.containers:
                shares = tuple(share for share in container.shares if share.vendor == self._vendor)
                done = (reservation.id, container.name) in taken or self._is_served(uid, container.name)
                if shares and not done:
                    found.append(Waiting(reservation=reservation.id, owner_uid=uid, container=container.name, shares=shares))
                    break
        return found

    def _cards(self, waiting: Waiting) -> list[Card]:
        """A card that is not on the node any more has no node of its own; the runtime then refuses the container."""
        known = {device.uuid: device for device in self._devices()}
        cards = []
        for share in waiting.shares:
            device = known.get(share.uuid if share.mig is None else share.mig.uuid)
            if device is not None:
                cards.append(card_of(device, by_index=self._by_index))
            elif share.mig is not None:
                cards.append(Card(share.mig.uuid))
            else:
                cards.append(Card(str(share.index) if self._by_index else share.uuid))
        return cards
