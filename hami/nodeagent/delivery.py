"""Tying Allocate to containers afterwards: the kubelet's checkpoint and pod-resources say who got which answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import anyio
import msgspec
from google.protobuf.message import DecodeError

from hami.domain.allocation import Reservation
from hami.domain.errors import InvalidInput
from hami.events.catalog.allocation import AllocationPrepared
from hami.nodeagent.caches import PREFIX, CacheFolders
from hami.nodeagent.decide.served import difference
from hami.nodeagent.feed import ReservationBook
from hami.nodeagent.pb import deviceplugin_pb2 as pb
from hami.nodeagent.plugin import Served
from hami.nodeagent.podresources import CHECKPOINT, GivenTo, PodResources, read_checkpoint
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import ServedContainer, StateFile
from hami.telemetry import get_logger

log = get_logger("delivery")

SOON_S: Final = (0.05, 0.2, 0.5, 1.0)
"""Pauses between looks after an Allocate: the kubelet writes its checkpoint when it has our answer, not before."""


class Ties(Protocol):
    """Who cares which container holds which answer: delivery in order."""

    def given_to(self, number: int, owner_uid: str) -> str:
        """A container holds that answer. In words what is wrong with that; empty when nothing is."""
        ...

    def take_back(self, numbers: Sequence[int]) -> None:
        """Nobody holds these answers."""
        ...


class DeliveryWatch:
    """Looks after every Allocate and on a timer. A container is told of once; one whose reservation is not known yet, later.

    `strangers`: containers that hold devices without a reservation, by `<pod uid>/<container>`.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        pod_resources: Path,
        resource: str,
        *,
        book: ReservationBook,
        memory: StateFile,
        caches: CacheFolders,
        publisher: Publisher,
        every_s: float = 5.0,
        ties: Ties | None = None,
    ) -> None:
        self._checkpoint, self._pod_resources, self._resource = kubelet_dir / CHECKPOINT, pod_resources, resource
        self._book, self._memory, self._caches, self._publisher = book, memory, caches, publisher
        self._every_s, self._ties = every_s, ties
        self._wake = anyio.Event()
        self._open: dict[int, frozenset[str]] = {}
        self._misled: dict[str, str] = {}
        self._told_in_this_life: set[str] = set()
        self.strangers: frozenset[str] = frozenset()

    def served(self, served: Served) -> None:
        """An Allocate has been answered: look soon."""
        self._open[served.number] = frozenset(served.device_ids)
        self._wake.set()

    def look_soon(self) -> None:
        """A reservation has arrived; it may be that of a container which already holds its devices."""
        if self.strangers or self._open:
            self._wake.set()

    def is_served(self, uid: str, container: str) -> bool:
        return f"{uid}/{container}" in self._memory.state.served

    async def run(self) -> None:
        async with PodResources(self._pod_resources, resource=self._resource) as resources:
            while True:
                await self._look_until_tied(resources)
                with anyio.move_on_after(self._every_s):
                    await self._wake.wait()

    async def _look_until_tied(self, resources: PodResources) -> None:
        """A few looks close together, as long as an answer of ours has no container yet; then the timer is soon enough."""
        untied = [*self._open]
        for pause in SOON_S:
            self._wake = anyio.Event()
            complete = await self.look(resources)
            if not self._open:
                return
            with anyio.move_on_after(pause):
                await self._wake.wait()
        given_up = [number for number in untied if self._open.pop(number, None) is not None]
        if complete and self._ties is not None:
            self._ties.take_back(given_up)

    async def look(self, resources: PodResources) -> bool:
        """1 read a source, 2 tell of new containers, 3 forget those that are gone, 4 remove folders nobody holds.

        Only the checkpoint is complete, which is the answer: what is missing from the list of running containers may be there.
        """
        given, complete = await self._given(resources)
        strangers = set()
        for each in given:
            key = f"{each.uid}/{each.container}"
            if self._is_told(key):
                continue
            wrong, reservation = self._wrong(key, each), self._book.of_pod(each.uid)
            if reservation is None:
                strangers.add(key)
                continue
            self._prepared(key, each, reservation, wrong)
            for number in self._numbers(each):
                self._open.pop(number, None)
        self._say_strangers(frozenset(strangers))
        self._settle()
        if complete:
            self._forget({f"{each.uid}/{each.container}" for each in given})
            self._caches.sweep({_cache_dir(each.answer) for each in given})
        return complete

    async def _given(self, resources: PodResources) -> tuple[tuple[GivenTo, ...], bool]:
        """(containers, whether these are all). Without a readable checkpoint the running ones come from pod-resources."""
        try:
            given = read_checkpoint(self._checkpoint, self._resource)
        except InvalidInput as error:
            log.warning("kubelet checkpoint unreadable, using pod-resources alone", error=str(error))
            given = None
        if given is not None:
            return given, True
        return self._by_name(await resources.listed() or {}), False

    def _by_name(self, listed: Mapping[tuple[str, str, str], tuple[str, ...]]) -> tuple[GivenTo, ...]:
        found = []
        for (namespace, name, container), ids in listed.items():
            reservation = self._book.of_name(namespace, name)
            if reservation is not None:
                found.append(GivenTo(uid=reservation.owner.uid, container=container, device_ids=ids))
        return tuple(found)

    def _prepared(self, key: str, given: GivenTo, reservation: Reservation, wrong: str) -> None:
        differs = wrong or difference(reservation, given.container, given.device_ids)
        if differs:
            log.warning("served differs from reserved", pod=given.uid, container=given.container, difference=differs)
        event = AllocationPrepared(
            reservation=reservation.id,
            owner_uid=given.uid,
            namespace=reservation.owner.namespace,
            container=given.container,
            device_ids=given.device_ids,
            difference=differs,
        )
        self._publisher.publish(event, subject=given.uid)
        self._memory.state.served[key] = ServedContainer(
            pod_uid=given.uid,
            container=given.container,
            reservation=reservation.id,
            cache_dir=_cache_dir(given.answer),
            told=False,
        )
        self._told_in_this_life.add(key)
        log.info("container prepared", pod=given.uid, container=given.container, reservation=reservation.id)
        self._memory.save()

    def _numbers(self, given: GivenTo) -> list[int]:
        """Which answers of ours a container holds: by the folder that went with it, else by the ids it was asked for."""
        folder = _cache_dir(given.answer).rpartition("/")[2]
        if folder:
            return [int(folder.removeprefix(PREFIX))]
        ids = frozenset(given.device_ids)
        return [number for number, asked in self._open.items() if asked <= ids][:1]

    def _wrong(self, key: str, given: GivenTo) -> str:
        """What is wrong with a container's answer, remembered for as long as the container is not told of."""
        if self._ties is None:
            return ""
        for number in self._numbers(given):
            found = self._ties.given_to(number, given.uid)
            if found:
                self._misled[key] = found
        return self._misled.get(key, "")

    def _is_told(self, key: str) -> bool:
        """A container whose telling an earlier life may have lost is told of again; the log takes it once."""
        served = self._memory.state.served.get(key)
        return served is not None and (served.told or key in self._told_in_this_life)

    def _settle(self) -> None:
        """Once the publisher has got rid of everything, what this life told is told."""
        served = self._memory.state.served
        open_keys = [key for key in self._told_in_this_life if key in served and not served[key].told]
        if open_keys and self._publisher.state.idle:
            for key in open_keys:
                served[key] = msgspec.structs.replace(served[key], told=True)
            self._memory.save()

    def _say_strangers(self, strangers: frozenset[str]) -> None:
        for key in sorted(strangers - self.strangers):
            log.warning("container holds devices without a known reservation: it sees none", container=key)
        self.strangers = strangers

    def _forget(self, present: set[str]) -> None:
        """A pod may be gone before its release has come here. Its reservation must not look unserved in between: the next
        pod of that shape would get it.
        """
        if not self._book.read:
            return
        served = self._memory.state.served
        gone = [key for key, each in served.items() if key not in present and not self._book.has(each.reservation)]
        for key in gone:
            del served[key]
            self._told_in_this_life.discard(key)
        if gone:
            self._memory.save()


def _cache_dir(answer: bytes) -> str:
    """The cache folder in an answer of ours that the kubelet stored; empty when there is none."""
    try:
        response = pb.ContainerAllocateResponse.FromString(answer)
    except DecodeError:
        return ""
    return next((m.host_path for m in response.mounts if m.host_path.rpartition("/")[2].startswith(PREFIX)), "")
