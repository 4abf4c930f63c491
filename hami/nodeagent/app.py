"""The agent's composition root: one node's devices, from the library to the kubelet and to the log."""

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio
import msgspec

from hami.config import AgentSettings
from hami.domain.errors import DeviceUnavailable, InvalidInput, StoreUnavailable, StoreUnsafe
from hami.domain.units import EpochMs, MiB
from hami.events.lease import Leases
from hami.events.log import NodeFeed
from hami.nodeagent.backends.base import DeviceBackend
from hami.nodeagent.board import Board
from hami.nodeagent.caches import CacheFolders
from hami.nodeagent.decide.container import ContainerEdits, HookSettings, anonymous_edits
from hami.nodeagent.decide.health import policy_of
from hami.nodeagent.decide.register import NodeConfig
from hami.nodeagent.delivery import DeliveryWatch
from hami.nodeagent.feed import FeedReader, ReservationBook
from hami.nodeagent.health import HealthTiming, HealthWatch
from hami.nodeagent.kubelet import KubeletLink, LinkTiming
from hami.nodeagent.plugin import Answers, DevicePlugin
from hami.nodeagent.ports import Publisher
from hami.nodeagent.registrar import NodeFacts, Registrar
from hami.nodeagent.state import StateFile
from hami.telemetry import get_logger

log = get_logger("agent")

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
HAMI_VARIABLES: Final = {"DP_DISABLE_HEALTHCHECKS": "disable_healthchecks", "DP_ENABLE_HEALTHCHECKS": "enable_healthchecks"}


class AgentTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How often the agent looks; tests make it quick."""

    inventory_s: float = 30.0
    delivery_s: float = 5.0
    open_retry_s: float = 10.0
    health: HealthTiming = HealthTiming()
    link: LinkTiming = LinkTiming()


def wall_clock() -> EpochMs:
    return EpochMs(time.time_ns() // 1_000_000)


def this_boot() -> str:
    """The machine's boot id: a new one is proof of a reboot."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


def with_hami_variables(env: Mapping[str, str]) -> dict[str, str]:
    """HAMi's own variables for the health checks, under our names; ours win where both are set."""
    renamed = {f"HAMI_AGENT_{ours.upper()}": env[theirs] for theirs, ours in HAMI_VARIABLES.items() if theirs in env}
    return {**renamed, **env}


class Agent:
    """One node's agent, wired. `run` until cancelled; the parts are public for health endpoints and tests."""

    def __init__(
        self,
        settings: AgentSettings,
        backend: DeviceBackend,
        publisher: Publisher,
        feed: NodeFeed,
        leases: Leases,
        *,
        node_uid: str = "",
        boot_id: str = "",
        version: str = "",
        clock: Callable[[], EpochMs] = wall_clock,
        timing: AgentTiming | None = None,
    ) -> None:
        if not settings.node_name:
            raise InvalidInput("agent.node_name", "", "the agent must know its node")
        self._settings, self._backend, self._publisher, self._leases = settings, backend, publisher, leases
        self._timing = timing or AgentTiming()
        self._hook = _hook(settings)
        self._caches = CacheFolders(Path(self._hook.folder) / "containers")
        self.memory = StateFile(Path(settings.state_dir))
        self.memory.load()
        self.board, self.book = Board(), ReservationBook()
        policy = policy_of(settings.health_profile, disable=settings.disable_healthchecks, enable=settings.enable_healthchecks)
        self.health = HealthWatch(
            backend,
            self.board,
            self.memory,
            publisher,
            policy=policy,
            boot_id=boot_id,
            clock=clock,
            timing=self._timing.health,
        )
        config, facts = _node_config(settings), _facts(settings, node_uid, boot_id, version)
        self.registrar = Registrar(backend, self.board, self.memory, publisher, health=self.health, config=config, facts=facts)
        self.delivery = self._delivery(publisher)
        self.plugin, self.link = self._kubelet_side()
        self._feed = FeedReader(feed, self.book, publisher, report=self.registrar.report, clock=clock)

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
        )

    def _kubelet_side(self) -> tuple[DevicePlugin, KubeletLink]:
        answers = Answers(
            self._edits,
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
        await self._open()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.registrar.run, self._timing.inventory_s)
                tasks.start_soon(self.health.run)
                tasks.start_soon(self.link.run)
                tasks.start_soon(self._feed.run)
                tasks.start_soon(self.delivery.run)
                tasks.start_soon(self._keep_lease)
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
                await self._leases.keep(self._settings.node_name, str(self._publisher.state.epoch), ttl_ms=ttl_ms)
            except (StoreUnavailable, StoreUnsafe) as error:
                log.warning("lease not renewed", error=str(error))
            await anyio.sleep(self._settings.lease_every_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter

    def _present(self) -> frozenset[str]:
        exists = os.path.exists  # Path.exists raises where it may not look
        return frozenset(source for source in self._hook.sources if exists(source))

    def _edits(self, number: int) -> tuple[ContainerEdits, str]:
        """The same answer for everyone, but for the number of the folder; nothing here waits for anybody."""
        present = self._present()
        cache_dir = self._caches.make(number) if present else ""
        return anonymous_edits(self._hook, present=present, cache_dir=cache_dir), cache_dir


async def run_agent(agent: Agent, stop: anyio.Event) -> None:
    """Until `stop` is set."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        await stop.wait()
        tasks.cancel_scope.cancel()


def _facts(settings: AgentSettings, node_uid: str, boot_id: str, version: str) -> NodeFacts:
    return NodeFacts(
        node=settings.node_name,
        node_uid=node_uid,
        boot_id=boot_id,
        version=version,
        numa_to_kubelet=settings.numa_to_kubelet,
    )


def _hook(settings: AgentSettings) -> HookSettings:
    return HookSettings(
        root=settings.hook_path,
        library=settings.library_file,
        log_level=settings.library_log_level,
        oversubscribe=settings.memory_scaling > 1,
        disable_core_limit=settings.disable_core_limit,
    )


def _node_config(settings: AgentSettings) -> NodeConfig:
    return NodeConfig(
        split_count=settings.split_count,
        memory_scaling=settings.memory_scaling,
        core_scaling=settings.core_scaling,
        mode=settings.mode,
        preconfigured_memory=MiB(settings.preconfigured_memory_mib),
        exclude_uuids=frozenset(_words(settings.exclude_uuids)),
        exclude_indexes=frozenset(_index(word) for word in _words(settings.exclude_indexes)),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _index(word: str) -> int:
    if not word.isdecimal():
        raise InvalidInput("agent.exclude_indexes", word, "must be a card's index")
    return int(word)
