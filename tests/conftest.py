"""Fixtures for all tests: asyncio as the backend, and no HAMI_* of the developer's shell."""

import os

import pytest

pytest_plugins = ["tests.support.redis_server", "tests.support.cluster", "tests.support.scheduler"]


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Plain asyncio: the loop that redis.asyncio, grpc.aio and the Kubernetes client share everywhere."""
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HAMI_") and not name.startswith("HAMI_TEST_"):
            monkeypatch.delenv(name)
