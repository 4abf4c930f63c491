"""The HTTP server: what was bound, body limits, certificates replaced while it runs, and how it stops."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import trustme
from anyio.streams.tls import TLSAttribute
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hami.domain.errors import InvalidInput
from hami.web.health import Readiness, health_routes, metrics_route
from hami.web.server import Tls, serve, split_bind
from tests.support.waiting import wait_until


async def _echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@asynccontextmanager
async def _serving(app: Starlette, *, max_body: int = 1000, tls: Tls | None = None) -> AsyncIterator[str]:
    async with anyio.create_task_group() as tasks:
        url = await tasks.start(partial(serve, app, bind="127.0.0.1:0", max_body=max_body, tls=tls, grace_s=2))
        yield url
        tasks.cancel_scope.cancel()


def _app() -> Starlette:
    return Starlette(routes=[Route("/echo", _echo, methods=["POST"])])


async def test_port_zero_tells_the_bound_url_and_bodies_arrive_whole() -> None:
    async with _serving(_app()) as url, aiohttp.ClientSession() as http, http.post(f"{url}/echo", data=b"x" * 1000) as answer:
        assert (answer.status, await answer.text()) == (200, "1000")


async def test_a_declared_body_over_the_limit_is_refused_with_both_numbers() -> None:
    async with _serving(_app()) as url, aiohttp.ClientSession() as http, http.post(f"{url}/echo", data=b"x" * 1001) as answer:
        assert answer.status == 413
        assert await answer.text() == "body of 1001 bytes or more is over the limit of 1000 bytes\n"


async def test_a_chunked_body_over_the_limit_is_refused_not_cut() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with _serving(_app()) as url, aiohttp.ClientSession() as http, http.post(f"{url}/echo", data=chunks()) as answer:
        assert answer.status == 413
        assert "over the limit of 1000 bytes" in await answer.text()


@pytest.mark.parametrize("bind", ["nowhere", "127.0.0.1:70000", "127.0.0.1:http"])
async def test_a_bad_address_is_named(bind: str) -> None:
    with pytest.raises(InvalidInput, match=bind):
        await serve(_app(), bind=bind)


def test_addresses_of_all_kinds() -> None:
    assert split_bind("[::1]:80") == ("::1", 80)
    assert split_bind(":9395") == ("", 9395)


async def test_an_address_in_use_is_an_error_not_an_exit() -> None:
    async with _serving(_app()) as url:
        with pytest.raises(InvalidInput, match="in use"):
            await serve(_app(), bind=url.removeprefix("http://"))


async def test_a_running_request_finishes_on_shutdown() -> None:
    entered, release = anyio.Event(), anyio.Event()

    async def slow(_: Request) -> PlainTextResponse:
        entered.set()
        await release.wait()
        return PlainTextResponse("done")

    texts: list[str] = []

    async def call(url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/slow") as answer:
            texts.append(await answer.text())

    async with anyio.create_task_group() as clients, _serving(Starlette(routes=[Route("/slow", slow)])) as url:
        clients.start_soon(call, url)
        await entered.wait()
        clients.start_soon(_later, release)
    assert texts == ["done"]


async def _later(release: anyio.Event) -> None:
    await anyio.lowlevel.checkpoint()
    release.set()


async def test_a_hanging_request_does_not_hold_the_shutdown_for_ever() -> None:
    entered = anyio.Event()

    async def hang(_: Request) -> PlainTextResponse:
        entered.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def call(url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/hang") as answer:
            assert answer.status == 500

    with anyio.fail_after(8):
        async with anyio.create_task_group() as clients, _serving(Starlette(routes=[Route("/hang", hang)])) as url:
            clients.start_soon(call, url)
            await entered.wait()


def _write_pair(authority: trustme.CA, folder: Path) -> Tls:
    issued = authority.issue_cert("127.0.0.1")
    cert, key = folder / "tls.crt", folder / "tls.key"
    issued.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return Tls(str(cert), str(key), check_every_s=0.02)


async def test_a_replaced_certificate_serves_new_connections(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = _write_pair(authority, tmp_path)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def serial(host: str, port: int) -> object:
        async with await anyio.connect_tcp(host, port, ssl_context=trusting, tls_hostname="127.0.0.1") as stream:
            return (stream.extra(TLSAttribute.peer_certificate) or {})["serialNumber"]

    async with _serving(_app(), tls=tls) as url:
        assert url.startswith("https://")
        host, port = split_bind(url.removeprefix("https://"))
        first = await serial(host, port)
        _write_pair(authority, tmp_path)

        async def later() -> bool:
            return await serial(host, port) != first

        changed: Callable[[], Any] = later
        await wait_until(changed, "a new certificate on new connections")


async def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.crt"):
        await serve(_app(), bind="127.0.0.1:0", tls=Tls(str(tmp_path / "absent.crt"), str(tmp_path / "absent.key")))


async def test_ready_only_without_reasons_and_metrics_come_from_their_own_registry() -> None:
    reason = ["store away"]
    registry = CollectorRegistry()
    Counter("hami_made_up", "A counter.", registry=registry).inc()
    readiness = Readiness({"store": lambda: reason[0], "inventory": lambda: ""})
    app = Starlette(routes=[*health_routes(readiness), metrics_route(registry)])
    async with _serving(app) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        async with http.get(f"{url}/readyz") as answer:
            assert answer.status == 503
            assert await answer.json() == {"ready": False, "reasons": {"store": "store away"}}
        reason[0] = ""
        async with http.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        async with http.get(f"{url}/metrics") as answer:
            assert "hami_made_up_total 1.0" in await answer.text()
