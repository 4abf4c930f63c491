"""A Kubernetes to talk to: the simulated API server, or the cluster that HAMI_TEST_KUBECONFIG points at.

On a real cluster tests make nodes of their own (without a kubelet), pods in `default` and namespaces; all of it goes when the
test is over. Take one that nobody needs. A test that puts faults in the server's way is left out there, and says so.
"""

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from hami.kube.client import KubeClient, Obj
from hami.kube.kinds import NAMESPACES, Kind
from hami.sim.apiserver.app import RunningServer, Settings, serving
from tests.support.waiting import wait_until

REAL_CLUSTER = os.environ.get("HAMI_TEST_KUBECONFIG", "")
CLEANING_S = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A client and a namespace that is the test's own."""

    client: KubeClient
    namespace: str


class Tidy(KubeClient):
    """Remembers what it created, to take it away again."""

    made: list[tuple[Kind[Any], str, str]]

    async def create(self, kind: Kind[Any], obj: Obj, *, namespace: str = "") -> Obj:
        created = await super().create(kind, obj, namespace=namespace)
        meta = created["metadata"]
        self.__dict__.setdefault("made", []).append((kind, meta.get("namespace", ""), meta["name"]))
        return created

    async def tidy(self) -> None:
        """In the order of making backwards; returns when the API shows none of it any more."""
        made = list(reversed(self.__dict__.get("made", [])))
        for kind, namespace, name in made:
            await self.delete(kind, namespace, name, grace=0)
        for kind, namespace, name in made:
            if kind is not NAMESPACES:
                await wait_until(partial(self._gone, kind, namespace, name), f"{kind.kind} {name} to go", timeout=CLEANING_S)

    async def _gone(self, kind: Kind[Any], namespace: str, name: str) -> bool:
        return await self.get(kind, namespace, name) is None


@dataclass(frozen=True, slots=True)
class Api:
    """An API server for a whole test; `server` is None on a real cluster."""

    client: KubeClient
    server: RunningServer | None = None
    marked: bool = True

    def simulated(self) -> RunningServer:
        assert self.server is not None
        assert self.marked, "a test that looks behind the API or puts faults in its way is marked `simulated`"
        return self.server

    def kubeconfig(self, token: str = "") -> str:
        return Path(REAL_CLUSTER).read_text() if self.server is None else json.dumps(self.server.kubeconfig(token))


@pytest.fixture
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """The simulated server, or the real cluster."""
    marked = request.node.get_closest_marker("simulated") is not None
    if not REAL_CLUSTER:
        async with serving(Settings(bookmark_every=0.2)) as server, KubeClient.at(server.url, timeout=5.0) as client:
            yield Api(client, server, marked)
        return
    if marked:
        pytest.skip("looks behind the API or puts faults in its way: needs the simulated server")
    async with Tidy.from_kubeconfig(REAL_CLUSTER) as client:
        try:
            yield Api(client)
        finally:
            with anyio.CancelScope(shield=True):
                await client.tidy()


@pytest.fixture
async def sim() -> AsyncIterator[RunningServer]:
    """The simulated server itself, for tests that put faults in its way."""
    async with serving(Settings(bookmark_every=0.2)) as server:
        yield server


@pytest.fixture
async def sim_client(sim: RunningServer) -> AsyncIterator[KubeClient]:
    async with KubeClient.at(sim.url, timeout=5.0) as client:
        yield client


@pytest.fixture
async def cluster(api: Api) -> Cluster:
    """A namespace of its own on either; what a test makes in it goes with it."""
    made = await api.client.create(NAMESPACES, {"metadata": {"generateName": "hami-test-"}})
    return Cluster(api.client, made["metadata"]["name"])


@pytest.fixture
async def kube_client(cluster: Cluster) -> KubeClient:
    return cluster.client
