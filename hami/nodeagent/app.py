"""The agent's composition root: one node's devices, from the library to the kubelet and to the log."""

import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import anyio
import msgspec

from hami.config import AgentSettings
from hami.domain.cluster import Delivery
from hami.domain.device import Device
from hami.domain.errors import DeviceUnavailable, StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs
from hami.events.lease import Leases
from hami.events.log import NodeFeed
from hami.nodeagent.announce import Announcer, NodeObject
from hami.nodeagent.backends.base import MigBackend
from hami.nodeagent.board import Board
from hami.nodeagent.caches import CacheFolders
from hami.nodeagent.cdi import CdiFiles
from hami.nodeagent.decide.container import NO_DEVICE, VISIBLE, ContainerEdits, anonymous_edits, reserved_edits
from hami.nodeagent.decide.health import policy_of
from hami.nodeagent.decide.listing import CONTROL_NODES, IMEX_FOLDER, Card, card_of, listing_edits
from hami.nodeagent.decide.ordered import Refusal, Waiting
from hami.nodeagent.decide.register import MIG
from hami.nodeagent.delivery import DeliveryWatch
from hami.nodeagent.desk import Desk
from hami.nodeagent.feed import FeedReader, ReservationBook
from hami.nodeagent.gate import Gate
from hami.nodeagent.health import HealthTiming, HealthWatch
from hami.nodeagent.kinds import KindPlugins
from hami.nodeagent.kubelet import KubeletLink, LinkTiming
from hami.nodeagent.mig import MigKeeper, MigTiming
from hami.nodeagent.ordered import WAIT_S, OrderedDelivery
from hami.nodeagent.plugin import Answers, DevicePlugin
from hami.nodeagent.ports import Publisher
from hami.nodeagent.registrar import Registrar
from hami.nodeagent.rivals import RivalWatch
from hami.nodeagent.settings import hook_settings, listing_settings, node_config_of, node_facts, require_node_name
from hami.nodeagent.state import StateFile
from hami.nodeagent.steady import since_boot, steady_clock
from hami.telemetry import get_logger

log = get_logger("agent")

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class AgentTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How often the agent looks; tests make it quick."""

    inventory_s: float = 30.0
    delivery_s: float = 5.0
    ordered_s: float = WAIT_S
    open_retry_s: float = 10.0
    gate_s: float = 0.25
    rivals_s: float = 10.0
    health: HealthTiming = HealthTiming()
    mig: MigTiming = MigTiming()
    link: LinkTiming = LinkTiming()


def wall_clock() -> EpochMs:
    return EpochMs(time.time_ns() // 1_000_000)


def this_boot() -> str:
    """The machine's boot id: a new one is proof of a reboot."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


class Agent:
    """One node's agent, wired. `run` until cancelled; the parts are public for health endpoints and tests."""

    def __init__(
        self,
        settings: AgentSettings,
        backend: MigBackend,
        publisher: Publisher,
        feed: NodeFeed,
        leases: Leases,
        *,
        node_uid: str = "",
        boot_id: str = "",
        version: str = "",
        clock: Callable[[], EpochMs] = wall_clock,
        timing: AgentTiming | None = None,
        node_object: NodeObject | None = None,
        uptime: Callable[[], int] = since_boot,
    ) -> None:
        require_node_name(settings)
        self._settings, self._backend, self._leases = settings, backend, leases
        self._timing = timing or AgentTiming()
        self._hook, self._listing = hook_settings(settings), listing_settings(settings)
        self._caches = CacheFolders(Path(self._hook.folder) / "containers")
        self.memory = StateFile(Path(settings.state_dir))
        self.memory.load()
        publisher = self.desk = Desk(self.memory, publisher)
        self.board, self.book = Board(), ReservationBook()
        self.health = self._health_watch(boot_id, steady_clock(self.memory, boot_id, clock, uptime))
        config, facts = node_config_of(settings), node_facts(settings, node_uid or self.memory.state.node_uid, boot_id, version)
        self.announcer = None if node_object is None else self._announcer(node_object)
        self._cdi = self._cdi_files()
        self.registrar = Registrar(
            backend,
            self.board,
            self.memory,
            publisher,
            health=self.health,
            config=config,
            facts=facts,
            on_look=self._seen,
        )
        self.ordered = self._ordered_delivery()
        self.delivery = self._delivery(publisher)
        self.plugin, self.link = self._kubelet_side()
        answers = partial(Answers, self._edits, direct=self._direct_edits)
        self.kinds = KindPlugins(self.board, answers, Path(settings.kubelet_dir), timing=self._timing.link)
        self.keeper = self._mig_keeper(publisher) if settings.mode == MIG else None
        gate = Path(settings.mig_gate or f"{settings.state_dir}/mig-apply.lock")
        self.gate = Gate(gate, self.memory, publisher, clock=clock, poll_s=self._timing.gate_s)
        self.rivals = self._rivals()
        self.feed = FeedReader(
            feed,
            self.book,
            publisher,
            voice=self.registrar,
            clock=clock,
            on_reservation=self.delivery.look_soon,
            on_change=lambda: None if self.keeper is None else self.keeper.wake(),
        )

    def _health_watch(self, boot_id: str, clock: Callable[[], EpochMs]) -> HealthWatch:
        chosen = self._settings
        return HealthWatch(
            self._backend,
            self.board,
            self.memory,
            self.desk,
            policy=policy_of(chosen.health_profile, disable=chosen.disable_healthchecks, enable=chosen.enable_healthchecks),
            boot_id=boot_id,
            clock=clock,
            timing=self._timing.health,
            tenants=self.book.tenants,
            present=lambda: self.registrar.present,
            pieces=lambda card: self.registrar.pieces_of(card),  # noqa: PLW0108 - it is made after
        )

    def _rivals(self) -> RivalWatch:
        return RivalWatch(
            Path(self._settings.kubelet_dir),
            self._settings.resource_name,
            self.board,
            self.desk,
            listened_to=lambda: self.link.registered and self.plugin.streams > 0,
            every_s=self._timing.rivals_s,
        )

    def _delivery(self, publisher: Publisher) -> DeliveryWatch:
        return DeliveryWatch(
            Path(self._settings.kubelet_dir),
            Path(self._settings.pod_resources_socket),
            self._settings.resource_name,
            book=self.book,
            memory=self.memory,
            caches=self._caches,
            publisher=publisher,
            every_s=self._timing.delivery_s,
            ties=self.ordered,
        )

    def _mig_keeper(self, publisher: Publisher) -> MigKeeper:
        return MigKeeper(
            self._backend,
            self.book,
            self.memory,
            publisher,
            cards=lambda: self.memory.state.told,
            off=self.registrar.not_cut_yet,
            on_mode=self.registrar.look,
            on_cut=self.registrar.cut,
            on_gone=self.registrar.gone,
            saved=self.desk.saved,
            timing=self._timing.mig,
        )

    def _announcer(self, node_object: NodeObject) -> Announcer:
        name, scores = self._settings.node_name, self._settings.topology_annotation
        return Announcer(name, node_object, self.board, lambda: self.memory.state.told, pair_scores=scores)

    def _cdi_files(self) -> CdiFiles | None:
        if not self._listing.cdi:
            return None
        here, hook = self._settings.driver_root, self._settings.cdi_hook_path
        return CdiFiles(Path(self._settings.cdi_dir), self._listing, here=here, hook=hook)

    def _seen(self, devices: Sequence[Device], driver: str) -> None:
        """Before the kubelet is told of a card, its runtime must know the name."""
        if self._cdi is not None:
            self._cdi.write(devices, driver)

    def _ordered_delivery(self) -> OrderedDelivery | None:
        """None where every answer is the same."""
        if self._listing.delivery is Delivery.IDENTITY:
            return None
        return OrderedDelivery(
            self.book,
            self._specific_edits,
            vendor=self._backend.vendor,
            is_served=lambda uid, container: f"{uid}/{container}" in self.memory.state.served,
            devices=lambda: (*self.memory.state.seen, *self.registrar.pieces.values()),
            by_index=self._listing.by_index,
            wait_s=self._timing.ordered_s,
        )

    def _kubelet_side(self) -> tuple[DevicePlugin, KubeletLink]:
        answers = Answers(
            self._edits,
            ordered=self.ordered,
            first=self._caches.next_number(),
            wanted=lambda size: self.book.likely_cards(size, self.delivery.is_served),
            on_served=self.delivery.served,
        )
        folder, resource = Path(self._settings.kubelet_dir), self._settings.resource_name
        plugin = DevicePlugin(self.board, answers, folder / f"hami-{resource.rpartition('/')[2]}.sock")
        return plugin, KubeletLink(plugin, folder, resource, timing=self._timing.link)

    async def run(self) -> None:
        """1 the library, 2 the board, 3 everything else at once. The kubelet is served whether or not there is a store."""
        log.info("agent starts", node=self._settings.node_name)
        if not self._hook.chosen(self._present()):
            log.warning(
                "no interception library: containers see their cards, but nothing holds them to memory and cores",
                folder=self._hook.folder,
            )
        opened = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.desk.run)
            tasks.start_soon(self._on_cards, opened)
            await opened.wait()
            for part in self._parts():
                tasks.start_soon(part)

    def _parts(self) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Whatever goes on while the gate is closed, too."""
        yield from (self.link.run, self.kinds.run, self.rivals.run, self.feed.run, self.delivery.run, self._keep_lease)
        if self.announcer is not None:
            yield self.announcer.run

    async def _on_cards(self, opened: anyio.Event) -> None:
        """Whatever asks the cards, for as long as the gate is open: 1 open, 2 look, 3 ask each, 4 work, 5 let go."""
        try:
            while True:
                if self.gate.closed:
                    self.gate.shut()
                    await self._backend.close()
                    await self.desk.saved()
                    self.gate.clear()
                    await self.gate.until(closed=False)
                await self._open()
                if self.gate.blind:
                    await self.health.probe_all()
                self.gate.reopened()
                opened.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.registrar.run, self._timing.inventory_s)
                    tasks.start_soon(self.health.run)
                    if self.keeper is not None:
                        tasks.start_soon(self.keeper.run)
                    await self.gate.until(closed=True)
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._backend.close()

    async def _open(self) -> None:
        """Until the library is there: a node whose driver is still being installed waits, it does not crash."""
        while True:
            try:
                await self._backend.open()
                await self.registrar.look()
                return
            except DeviceUnavailable as error:
                log.warning("device library is not usable yet", error=str(error))
                await anyio.sleep(self._timing.open_retry_s)

    async def _keep_lease(self) -> None:
        """A little jitter keeps a thousand agents from renewing in the same instant."""
        ttl_ms = int(self._settings.lease_ttl_s * 1000)
        while True:
            try:
                await self._leases.keep(self._settings.node_name, str(self.desk.state.epoch), ttl_ms=ttl_ms)
            except (StoreUnavailable, StoreUnsafe) as error:
                log.warning("lease not renewed", error=str(error))
            await anyio.sleep(self._settings.lease_every_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter

    def _present(self) -> frozenset[str]:
        exists = os.path.exists  # Path.exists raises where it may not look
        return frozenset(source for source in self._hook.sources if exists(source))

    def _edits(self, number: int) -> tuple[ContainerEdits, str]:
        """The same answer for everyone, but for the number of the folder; nothing here waits for anybody."""
        present, cache_dir = self._mounts(number)
        extras = msgspec.structs.replace(self._listing, strategies=())
        beside = listing_edits((), extras, present=frozenset(), response="")
        if self._is_cut():
            return beside.plus(ContainerEdits(envs={VISIBLE: NO_DEVICE})), cache_dir
        return beside.plus(anonymous_edits(self._hook, present=present, cache_dir=cache_dir)), cache_dir

    def _specific_edits(self, number: int, waiting: Waiting, cards: Sequence[Card]) -> tuple[ContainerEdits, str]:
        """One container's own answer: its devices by every strategy, its limits, the library."""
        present, cache_dir = self._mounts(number)
        mine = reserved_edits(waiting.shares, self._hook, present=present, cache_dir=cache_dir)
        return mine.plus(self._listed(cards)), cache_dir

    def _direct_edits(self, device_ids: Sequence[str]) -> ContainerEdits | Refusal:
        """MIG instances that the kubelet picked by name: what it says is what the container gets."""
        pieces = [self.registrar.pieces.get(each) for each in device_ids]
        if None in pieces:
            gone = ", ".join(each for each, piece in zip(device_ids, pieces, strict=True) if piece is None)
            return Refusal(f"{gone}: no such MIG instance on this node")
        return self._listed([card_of(piece, by_index=False) for piece in pieces if piece is not None])

    def _listed(self, cards: Sequence[Card]) -> ContainerEdits:
        own = (node for card in cards for node in card.nodes)
        nodes = (*CONTROL_NODES, *own, *(f"{IMEX_FOLDER}/channel{n}" for n in self._listing.imex))
        return listing_edits(
            cards,
            self._listing,
            present=frozenset(node for node in nodes if Path(node).exists()),
            response=str(uuid4()),
            cdi_extras=[extra for extra in self._listing.extras if self._cdi is not None and extra in self._cdi.kinds],
        )

    def _is_cut(self) -> bool:
        """Where containers get MIG instances, the hardware keeps them to their limits, and no library is given to them."""
        return self._settings.mode == MIG or any(offer.plain and not offer.resource for offer in self.board.offers)

    def _mounts(self, number: int) -> tuple[frozenset[str], str]:
        present = self._present()
        return present, self._caches.make(number) if present else ""


async def run_agent(agent: Agent, stop: anyio.Event) -> None:
    """Until `stop` is set."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await stop.wait()
        tasks.cancel_scope.cancel()
