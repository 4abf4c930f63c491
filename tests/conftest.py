"""Fixtures for all tests: asyncio as the backend, and no HAMI_* of the developer's shell."""

import os

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": False})


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HAMI_") and not name.startswith("HAMI_TEST_"):
            monkeypatch.delenv(name)


pytest_plugins = ["tests.support.redis_server"]
