"""Telling the cluster which devices this node has: at the start and on change, never on a timer."""

from collections.abc import Callable, Mapping, Sequence

import anyio
import msgspec

from hami.domain.cluster import Delivery, Visible
from hami.domain.device import Device, Health
from hami.domain.errors import DeviceUnavailable
from hami.events.catalog.device import DeviceClearRequested, MigInstanceDestroyed
from hami.events.catalog.handshake import HandshakeReported, Held
from hami.events.catalog.node import NodeRegistered
from hami.nodeagent.backends.base import DeviceBackend, Inventory
from hami.nodeagent.board import Board, Offer
from hami.nodeagent.decide.faults import Piece
from hami.nodeagent.decide.health import kubelet_healthy
from hami.nodeagent.decide.mig import Instance
from hami.nodeagent.decide.pieces import as_device, resource_of
from hami.nodeagent.decide.register import DeviceSet, NodeConfig, device_set, differs
from hami.nodeagent.health import HealthWatch
from hami.nodeagent.ports import Publisher
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("registrar")


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who this node is, for one life of the agent."""

    node: str
    node_uid: str = ""
    boot_id: str = ""
    version: str = ""
    delivery: Delivery = Delivery.IDENTITY
    visible: Visible = Visible.UUID
    resource: str = "nvidia.com/gpu"
    numa_to_kubelet: bool = False
    """Whether the kubelet is told the cards' NUMA nodes (its topology manager then counts them in)."""


class Registrar:
    """Looks at the cards, puts them on the board, tells the cluster of changes, answers with a digest of what it told."""

    def __init__(
        self,
        backend: DeviceBackend,
        board: Board,
        memory: StateFile,
        publisher: Publisher,
        *,
        health: HealthWatch,
        config: NodeConfig,
        facts: NodeFacts,
        on_look: Callable[[Sequence[Device], str], None] = lambda _cards, _driver: None,
    ) -> None:
        self._backend, self._board, self._memory, self._publisher = backend, board, memory, publisher
        self._health, self._config, self._facts = health, config, facts
        self._on_look = on_look
        self._told, self._driver = False, ""
        self._offered: tuple[Device, ...] = ()
        self._left_out: dict[str, str] = {}
        self.pieces: dict[str, Device] = {}
        """MIG instances as devices, by uuid: as they were at the last look, and those cut since."""
        self._cut: dict[str, Instance] = {}
        self.cards: tuple[Device, ...] = ()
        """The cards themselves, offered or not."""
        self._present: frozenset[str] = frozenset()
        self._dismissed: set[str] = set()
        self._due = anyio.Event()
        self.looks = 0
        """How often the library was asked for the cards and answered."""

    def report(self) -> HandshakeReported:
        """The answer to a handshake, its nonce left to whoever answers."""
        told = DeviceSet(devices=self._memory.state.told)
        return HandshakeReported(
            nonce="",
            epoch=self._publisher.state.epoch,
            digest=told.digest,
            vendor=self._backend.vendor,
            health={
                each.uuid: now for each in told.devices if (now := self._health.health_of(each.uuid)) is not Health.HEALTHY
            },
            forgotten=self._health.forgotten,
        )

    def recall(self, held: Mapping[str, Held]) -> None:
        """The log's word on the cards, for a node that has lost its own record."""
        if self._told:
            self._health.recall([each.uuid for each in self._memory.state.told], held)

    def tell_again(self, devices: Sequence[str]) -> None:
        """The log has it differently from what was told: the whole set once more, and how these cards are."""
        if not self._told:
            return  # the first look tells anyway
        self._tell(DeviceSet(devices=self._as_now(self._memory.state.told)))
        for uuid in devices:
            self._health.tell_again(uuid)

    def clear(self, request: str, wanted: DeviceClearRequested) -> None:
        """A card that is not there has no fault to forget: the next look, which is due now, takes it for removed."""
        self._health.clear(request, wanted.device, wanted.actor, wanted.reason)
        self._dismissed.add(wanted.device)
        self._due.set()

    def node_is(self, uid: str) -> None:
        """The Node object's uid, whenever it comes to be known."""
        if uid and uid != self._facts.node_uid:
            self._facts = msgspec.structs.replace(self._facts, node_uid=uid)
            self._memory.state.node_uid = uid
            if self._told:
                self._tell(DeviceSet(devices=self._as_now(self._memory.state.told)))

    async def look(self) -> None:
        """1 ask the library, 2 who is missing, 3 decide the set, 4 board, 5 tell the cluster if it differs (at the start:
        always).
        """
        found = await self._backend.inventory()
        self._present = frozenset(device.uuid for device in found.devices)
        self._dismiss()
        await self._missed()
        self._health.forget(device.uuid for device in found.devices)
        self.cards = tuple(self._with_missing(found))
        instances = self._still_there(found)
        offered = device_set(self.cards, self._config, self._remembered(), instances)
        self._say_left_out(offered.left_out)
        before, self.pieces, self._cut = self._cut, {}, {}
        self._driver, self._offered = found.driver, offered.devices
        self.cut(instances)
        self._cut_away(before)
        self._board.show(self._offers(offered))
        first = not self._told
        if first or differs(self._memory.state.told, offered):
            self._tell(offered)
        if first and self._health.forgotten:
            self._publisher.publish(self.report())
        self._health.unmonitored(found.unmonitored)
        self.looks += 1

    async def run(self, every_s: float) -> None:
        """For ever. A library that does not answer leaves the board as it is: health says what is known of the cards."""
        while True:
            try:
                await self.look()
            except DeviceUnavailable as error:
                log.warning("no inventory", error=str(error))
            self._memory.retry()
            with anyio.move_on_after(every_s):
                await self._due.wait()
            self._due = anyio.Event()

    def _dismiss(self) -> None:
        """What an operator cleared and what is not there now leaves the set, and nothing is remembered of it."""
        state, gone = self._memory.state, self._dismissed - self._present
        self._dismissed.clear()
        if gone:
            state.seen = tuple(each for each in state.seen if each.uuid not in gone)
            for uuid in gone:
                state.cards.pop(uuid, None)

    async def _missed(self) -> None:
        """A card that was told of and is not there now is asked for by name, once: also one that went while nobody watched."""
        seen = {each.uuid for each in self._memory.state.seen}
        for each in self._memory.state.told:
            if each.uuid in seen - self._present and not self._health.is_missing(each.uuid):
                await self._health.probe(each.uuid)

    def _with_missing(self, found: Inventory) -> list[Device]:
        """A card that was told of and is missing now stays in the set: its fault is known, its pods still count. It leaves when
        an operator says so, or the settings exclude it.
        """
        seen = self._memory.state.seen
        sick = {uuid for uuid, card in self._memory.state.cards.items() if card.health is not Health.HEALTHY}
        told = {each.uuid for each in self._memory.state.told}
        present = self._present
        kept = [
            each for each in seen if each.uuid not in present and (each.uuid in found.unavailable or each.uuid in sick | told)
        ]
        cards = sorted([*_as_linked(found.devices, seen, kept), *kept], key=lambda each: (each.index, each.uuid))
        self._memory.state.seen = tuple(cards)
        return cards

    def _still_there(self, found: Inventory) -> tuple[Instance, ...]:
        """What was cut out of a card that cannot be described now stays with it."""
        kept = {card.uuid for card in self.cards} - self._present
        return (*found.instances, *(each for each in self._cut.values() if each.card in kept))

    def _as_now(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        return tuple(msgspec.structs.replace(each, health=self._health.health_of(each.uuid)) for each in devices)

    def healths(self) -> dict[str, Health]:
        """The cards that were told of, as they are now."""
        return {each.uuid: self._health.health_of(each.uuid) for each in self._memory.state.told}

    def _remembered(self) -> dict[str, Health]:
        return {uuid: card.health for uuid, card in self._memory.state.cards.items()}

    def not_cut_yet(self) -> list[Device]:
        """Cards that could be in MIG mode and are not, save those that are offered to nobody."""
        return [card for card in self.cards if card.attributes.get("mig") == "disabled" and self._config.may_offer(card)]

    def pieces_of(self, card: str) -> tuple[Piece, ...]:
        """The instances of a card that cannot be asked any more, as they were known last."""
        return tuple(
            Piece(each.gpu_instance, each.compute_instance, each.uuid)
            for each in self._cut.values()
            if each.card == card and each.compute_instance is not None
        )

    @property
    def present(self) -> frozenset[str]:
        return frozenset((*(card.uuid for card in self.cards), *self.pieces))

    def cut(self, instances: Sequence[Instance]) -> None:
        """Instances that are there now, or have just been made: known before anybody is given one."""
        cards = {card.uuid: card for card in self.cards if self._config.may_offer(card)}
        made = [each for each in instances if each.uuid and each.card in cards]
        self.pieces |= {each.uuid: as_device(cards[each.card], each) for each in made}
        self._cut |= {each.uuid: each for each in made}
        known = {device.uuid: device for device in (*self._offered, *self.pieces.values())}
        self._on_look(tuple(known.values()), self._driver)

    def gone(self, uuid: str) -> None:
        """An instance that was made here is no more."""
        self.pieces.pop(uuid, None)
        self._cut.pop(uuid, None)
        self._health.drop(uuid)

    def _cut_away(self, before: Mapping[str, Instance]) -> None:
        """What is said against an instance that somebody else destroyed is not said against the next of its name."""
        for uuid, instance in before.items():
            if uuid not in self._cut and self._health.drop(uuid):
                event = MigInstanceDestroyed(device=instance.card, instance=instance.slice, why="by somebody else")
                self._publisher.publish(event, subject=uuid)

    def _offers(self, offered: DeviceSet) -> list[Offer]:
        main = [self._offer(device, plain=offered.pieces) for device in offered.devices]
        further = [
            self._offer(device, plain=True, resource=resource_of(kind, self._facts.resource))
            for kind, devices in offered.mixed.items()
            for device in devices
        ]
        return [*main, *further]

    def _offer(self, device: Device, *, plain: bool = False, resource: str = "") -> Offer:
        return Offer(
            uuid=device.uuid,
            slots=device.slots,
            healthy=kubelet_healthy(device.health),
            numa=device.numa if self._facts.numa_to_kubelet else -1,
            resource=resource,
            plain=plain,
        )

    def _tell(self, offered: DeviceSet) -> None:
        event = NodeRegistered(
            vendor=self._backend.vendor,
            devices=offered.devices,
            node_uid=self._facts.node_uid,
            boot_id=self._facts.boot_id,
            delivery=self._facts.delivery,
            visible=self._facts.visible,
            agent_version=self._facts.version,
        )
        self._publisher.publish(event, subject=self._facts.node)
        self._told = True
        self._memory.state.told = offered.devices
        self._memory.save()
        self._board.again()
        log.info("registered with the cluster", devices=len(offered.devices), digest=offered.digest)

    def _say_left_out(self, left_out: dict[str, str]) -> None:
        for uuid, why in left_out.items():
            if self._left_out.get(uuid) != why:
                log.warning("card is not offered", device=uuid, why=why)
        self._left_out = dict(left_out)


def _as_linked(devices: Sequence[Device], seen: Sequence[Device], missing: Sequence[Device]) -> list[Device]:
    """How close a card is to one that is missing has not changed: a set that differs in nothing else is not told again."""
    before = {each.uuid: each.pair_scores for each in seen}
    gone = {each.uuid for each in missing}
    found = []
    for device in devices:
        kept = {uuid: score for uuid, score in before.get(device.uuid, {}).items() if uuid in gone}
        found.append(msgspec.structs.replace(device, pair_scores={**device.pair_scores, **kept}) if kept else device)
    return found
