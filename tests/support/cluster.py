"""A Kubernetes to talk to: the simulated API server, or the cluster that HAMI_TEST_KUBECONFIG points at."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from hami.kube.client import KubeClient
from hami.kube.kinds import NAMESPACES
from hami.sim.apiserver.app import RunningServer, Settings, serving

REAL_CLUSTER = os.environ.get("HAMI_TEST_KUBECONFIG", "")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A client and a namespace that is the test's own."""

    client: KubeClient
    namespace: str


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
async def cluster() -> AsyncIterator[Cluster]:
    """The simulated server, or the real cluster; what a test makes in its namespace goes with it."""
    if not REAL_CLUSTER:
        async with serving() as server, KubeClient.at(server.url) as client:
            made = await client.create(NAMESPACES, {"metadata": {"generateName": "hami-test-"}})
            yield Cluster(client, made["metadata"]["name"])
        return
    async with KubeClient.from_kubeconfig(REAL_CLUSTER) as client:
        made = await client.create(NAMESPACES, {"metadata": {"generateName": "hami-test-"}})
        try:
            yield Cluster(client, made["metadata"]["name"])
        finally:
            await client.delete(NAMESPACES, "", made["metadata"]["name"])


@pytest.fixture
async def kube_client(cluster: Cluster) -> KubeClient:
    return cluster.client
