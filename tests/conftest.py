<<<<<<< HEAD
"""Fixtures for all tests: asyncio as the backend, and no HAMI_* of the developer's shell."""

import os
=======
"""Fixtures every test sees."""
>>>>>>> apiserver

import pytest


<<<<<<< HEAD
@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HAMI_") and not name.startswith("HAMI_TEST_"):
            monkeypatch.delenv(name)
=======
@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Tests run on plain asyncio: it is the loop redis.asyncio, grpc.aio and the Kubernetes client share everywhere."""
    return ("asyncio", {"use_uvloop": False})
>>>>>>> apiserver
