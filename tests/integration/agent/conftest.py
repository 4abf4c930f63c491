"""A kubelet, simulated cards, and an agent between them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hami.nodeagent.backends.simulated import SimulatedBackend, simulated_cards
from hami.sim.kubelet.api import InMemoryApi
from hami.sim.kubelet.node import SimKubelet
from tests.support.agents import World, agent_on, offered
from tests.support.plugins import kubelet_on, socket_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_folder() as path:
        yield path


@pytest.fixture
def api() -> InMemoryApi:
    return InMemoryApi()


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend(simulated_cards(2))


@pytest.fixture
async def kubelet(folder: Path, api: InMemoryApi, anyio_backend: object) -> AsyncIterator[SimKubelet]:
    async with kubelet_on(folder, api) as running:
        yield running


@pytest.fixture
async def world(kubelet: SimKubelet, folder: Path, backend: SimulatedBackend, api: InMemoryApi) -> AsyncIterator[World]:
    async with agent_on(folder, backend) as made:
        await offered(api, "20", "20")
        yield made
