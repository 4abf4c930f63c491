"""Send a recorded request to the simulated API server and compare its answer with the recorded one.

What differs from run to run is made equal on both sides: uids and versions are learnt from answers that carry the same
object, times and generated suffixes are masked. `managedFields` is left out: the simulator keeps none.
"""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import httptools

from hami.sim.apiserver.app import RunningServer

Obj = dict[str, Any]
DATA = Path(__file__).parents[2] / "data" / "wire"
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_SUFFIX = re.compile(r"\b(b1|n|web)([.-])[a-z0-9]{5}\b")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERSION = re.compile(r"(ResourceVersion in (?:precondition|object meta): )\d+")


def recorded(name: str) -> Obj:
    path = DATA / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: Obj = json.loads(text)
    return found


class _Response:
    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode().lower(), value.decode()))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def send(server: RunningServer, method: str, path: str, headers: Mapping[str, str], body: Any) -> tuple[int, _Response]:
    """One request on a connection of its own, without a client library between the recording and the server."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(data)}", "Connection: close"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    answer = _Response()
    parser = httptools.HttpResponseParser(answer)
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        while not answer.complete:
            parser.feed_data(await stream.receive())
    return parser.get_status_code(), answer


class Replay:
    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._known: dict[str, str] = {}
        """Recorded uids and versions, and what they are here."""

    async def ask(self, step: Obj) -> tuple[int, Any]:
        request = step["request"]
        path, body = self._here(request["path"]), self._here(request["body"])
        status, answer = await send(self._server, request["method"], path, request["headers"], body)
        is_json = dict(answer.headers).get("content-type", "").startswith("application/json")
        actual = json.loads(answer.body) if is_json else answer.body.decode()
        self._learn(step["response"]["body"], actual)
        return status, actual

    def _here(self, value: Any) -> Any:
        """A recorded value with the uids and versions of this run."""
        if isinstance(value, Mapping):
            return {
                key: self._known.get(f"rv:{each}", each) if key == "resourceVersion" else self._here(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._here(each) for each in value]
        if isinstance(value, str):
            return _UID.sub(lambda found: self._known.get(found[0], found[0]), value)
        return value

    def _learn(self, expected: Any, actual: Any) -> None:
        for then, now in zip(_objects(expected), _objects(actual), strict=False):
            if then.get("name") != now.get("name") and "generateName" not in then:
                continue
            if "uid" in then and "uid" in now:
                self._known[then["uid"]] = now["uid"]
            if "resourceVersion" in then and "resourceVersion" in now:
                self._known[f"rv:{then['resourceVersion']}"] = now["resourceVersion"]

    def expected(self, value: Any) -> Any:
        """A recorded answer as it should come here."""
        return masked(self._here(value))


def _objects(value: Any) -> list[Obj]:
    """Metadata of every object in a body, in order."""
    if not isinstance(value, Mapping):
        return []
    found = [value["metadata"]] if isinstance(value.get("metadata"), Mapping) else []
    return found + [each for item in value.get("items") or [] for each in _objects(item)]


def masked(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: masked(each, name) for name, each in value.items() if name not in {"managedFields", "resourceVersion"}}
    if isinstance(value, list):
        return [masked(each) for each in value]
    if isinstance(value, str):
        value = _VERSION.sub(r"\1N", _TIME.sub("TIME", value))
        return _SUFFIX.sub(r"\1\2xxxxx", value) if key in {"name", "message"} else value
    return value
