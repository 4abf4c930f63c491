"""What benchmarks run on: a cluster of many nodes as events, pods that come and go, a server of our own."""

import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from hami.domain.allocation import ContainerShares, DeviceShare, PodOwner, Reservation
from hami.domain.device import Device
from hami.domain.request import ContainerKind
from hami.domain.units import CorePercent, EpochMs, MiB, Slots
from hami.events.catalog.allocation import AllocationBound, AllocationPrepared, AllocationReleased, AllocationReserved
from hami.events.catalog.governance import PlacementRequested
from hami.events.catalog.node import NodeRegistered
from hami.events.catalog.union import Event
from hami.events.log import Draft
from hami.events.redis.client import Client
from hami.events.redis.embedded import EmbeddedServer, embedded_server
from hami.events.redis.meta import initialise
from hami.events.redis.store import RedisStore

DEVICES_PER_NODE = 8


def node_name(i: int) -> str:
    return f"node-{i:05d}"


def registered(i: int, vendor: str = "NVIDIA") -> Draft:
    """Node i: eight cards, A100-80G on three nodes of five, A10 on the others; of another vendor, cards of these sizes."""
    big = i % 5 < 3
    devices = tuple(
        Device(
            uuid=f"GPU-{i:05d}-{d}",
            vendor=vendor,
            model=vendor if vendor != "NVIDIA" else "NVIDIA A100-SXM4-80GB" if big else "NVIDIA A10",
            memory=MiB(81920 if big else 23028),
            cores=CorePercent(100),
            slots=Slots(10),
            index=d,
            numa=d // 4,
            mode="hami-core",
        )
        for d in range(DEVICES_PER_NODE)
    )
    return Draft(event=NodeRegistered(vendor=vendor, devices=devices, node_uid=f"uid-{i}", boot_id="b1"), node=node_name(i))


def reservation(i: int, node: int, devices: list[int], *, memory: int, cores: int) -> Reservation:
    shares = tuple(
        DeviceShare(vendor="NVIDIA", uuid=f"GPU-{node:05d}-{d}", memory=MiB(memory), cores=CorePercent(cores), model="NVIDIA")
        for d in devices
    )
    return Reservation(
        id=f"r-{i}",
        owner=PodOwner(f"pod-{i}", "default", f"pod-{i}"),
        node=node_name(node),
        containers=(ContainerShares(name="main", kind=ContainerKind.APP, shares=shares),),
        scheduler="bench",
        deadline_ms=EpochMs(0),
        node_uid=f"uid-{node}",
    )


def lives(count: int, nodes: int, *, seed: int = 1) -> Iterator[Draft]:
    """`count` pods, each requested, reserved, bound, prepared and released: five events a pod, as the scheduler writes them."""
    draw = random.Random(seed)
    for i in range(count):
        node = draw.randrange(nodes)
        taken = reservation(i, node, [draw.randrange(DEVICES_PER_NODE)], memory=1000, cores=5)
        pod = taken.owner.uid
        events: list[Event] = [
            PlacementRequested(owner_uid=pod, namespace="default", name=pod, request="main: 1 x NVIDIA, 1000 MiB"),
            AllocationReserved(reservation=taken),
            AllocationBound(reservation=taken.id, owner_uid=pod, namespace="default"),
            AllocationPrepared(reservation=taken.id, owner_uid=pod, namespace="default", container="main"),
            AllocationReleased(reservation=taken.id, owner_uid=pod, namespace="default", reason="pod_deleted"),
        ]
        for event in events:
            yield Draft(event=event, node="" if isinstance(event, PlacementRequested) else taken.node, subject=pod)


def bound_pods(count: int, nodes: int, *, seed: int = 2) -> Iterator[Reservation]:
    """Pods that stay, one card each: nodes are loaded unevenly, between nothing and about 70 % of their memory."""
    draw = random.Random(seed)
    appetite = [draw.uniform(0.0, 0.7) for _ in range(nodes)]
    taken: dict[tuple[int, int], int] = {}
    made = 0
    while made < count:
        node, device = draw.randrange(nodes), draw.randrange(DEVICES_PER_NODE)
        share = taken.get((node, device), 0)
        if (share + 1) / 10 > appetite[node]:
            appetite[node] = min(0.7, appetite[node] + 0.001)
            continue
        taken[node, device] = share + 1
        capacity = 81920 if node % 5 < 3 else 23028
        yield reservation(1_000_000 + made, node, [device], memory=capacity // 12, cores=draw.randrange(0, 9))
        made += 1


def standing(count: int, nodes: int) -> Iterator[Draft]:
    """The same pods as events: reserved and bound."""
    for taken in bound_pods(count, nodes):
        pod = taken.owner.uid
        yield Draft(event=AllocationReserved(reservation=taken), node=taken.node, subject=pod)
        bound = AllocationBound(reservation=taken.id, owner_uid=pod, namespace="default")
        yield Draft(event=bound, node=taken.node, subject=pod)


@asynccontextmanager
async def a_store() -> AsyncIterator[tuple[EmbeddedServer, RedisStore]]:
    """A fresh server of the wheel, append-only file on, initialised."""
    with tempfile.TemporaryDirectory(prefix="hb-") as folder:
        async with embedded_server(Path(folder), prefer_wheel=True) as server, Client(server.url) as client:
            await initialise(client)
            yield server, RedisStore(client)
