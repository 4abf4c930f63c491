"""Which nodes are there: lease keys in, NodeLost and NodeBack out. One replica at a time does it (a job lock says who).

    lease gone at two looks in a row -> NodeLost          lease there at two looks in a row -> NodeBack

Many leases gone at once are taken for a fault of the store or the network: then nothing is believed until that has passed.
"""

from collections import Counter
from functools import partial
from typing import Final

import anyio

from hami.domain.cluster import ClusterSnapshot, Liveness
from hami.events.catalog.node import NodeBack, NodeLost
from hami.events.jobs import OneOf
from hami.events.log import Draft
from hami.scheduler.core import Core, Decision, at_versions
from hami.telemetry import get_logger

LOOKS: Final = 2
"""How often in a row a node must look different from what the log says: one look may fall into a reconnect."""

MASS_SHARE: Final = 0.2
MASS_LEAST: Final = 2
"""A single node is never a mass, however small the cluster."""

_log = get_logger("scheduler.sweeper")


class Sweeper:
    def __init__(self, core: Core, job: OneOf) -> None:
        self._core, self._job = core, job
        self._missing: Counter[str] = Counter()
        self._there: Counter[str] = Counter()
        self._frozen = False

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._core.settings.sweep_s)
            if await self._job.mine():
                await self.once()

    async def once(self) -> None:
        nodes = {name: node for name, node in self._core.view.snapshot().nodes.items() if node.has_agent}
        alive = await self._core.store.leases.alive(tuple(nodes))
        live = {name for name, node in nodes.items() if node.liveness is Liveness.LIVE}
        gone = {name for name in live if alive.get(name) is None}
        back = {name for name in nodes if name not in live and alive.get(name) is not None}
        self._missing = Counter({name: self._missing[name] + 1 for name in gone})
        self._there = Counter({name: self._there[name] + 1 for name in back})
        await self._declare({name for name in back if self._there[name] >= LOOKS}, lost=False)
        if self._too_many(gone, live):
            return
        await self._declare({name for name in gone if self._missing[name] >= LOOKS}, lost=True)

    def _too_many(self, gone: set[str], live: set[str]) -> bool:
        mass = len(gone) >= MASS_LEAST and len(gone) > MASS_SHARE * len(live)
        if mass and not self._frozen:
            _log.error(
                "leases of many nodes are gone at once: taken for a fault of the store or the network, no node is called lost",
                alert="mass_lease_expiry",
                gone=len(gone),
                live=len(live),
            )
        if self._frozen and not mass:
            _log.info("leases are back to normal")
        self._frozen = mass
        self._core.metrics.frozen.set(int(mass))
        return mass

    async def _declare(self, names: set[str], *, lost: bool) -> None:
        for name in sorted(names):
            await self._core.decide("sweeper", partial(_declared, name=name, lost=lost))


def _declared(snapshot: ClusterSnapshot, *, name: str, lost: bool) -> Decision | None:
    node = snapshot.nodes.get(name)
    if node is None or (node.liveness is Liveness.LOST) == lost:
        return None
    event = NodeLost() if lost else NodeBack()
    return [Draft(event=event, node=name)], at_versions(snapshot, f"node/{name}")
