"""Fixtures every test sees."""

import pytest

pytest_plugins = ("tests.support.cluster",)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Tests run on plain asyncio: it is the loop redis.asyncio, grpc.aio and the Kubernetes client share everywhere."""
    return ("asyncio", {"use_uvloop": False})
