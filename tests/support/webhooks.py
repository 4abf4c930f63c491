"""An HTTPS server that plays admission webhooks: keeps every review and answers as it is told."""

import base64
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hami.web.server import Tls, serve

Obj = dict[str, Any]
Answer = Callable[[Obj], Obj | bytes | int]
"""From an AdmissionReview to the answer's body (a dict is sent as JSON), or to a bare status code."""


def reviewed(review: Obj, **response: Any) -> Obj:
    uid = review["request"]["uid"]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, **response}}


def allow(review: Obj) -> Obj:
    return reviewed(review, allowed=True)


def deny(**status: Any) -> Answer:
    return lambda review: reviewed(review, allowed=False, **({"status": status} if status else {}))


def patching(*operations: Obj, **more: Any) -> Answer:
    return patching_text(json.dumps(list(operations)), **more)


def patching_text(text: str, **more: Any) -> Answer:
    patch = base64.b64encode(text.encode()).decode()
    return lambda review: reviewed(review, allowed=True, **{"patchType": "JSONPatch", "patch": patch, **more})


class Webhooks:
    """The answers to come, and what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.authority_pem = ""
        self.mutate: Answer = allow
        self.validate: Answer = allow
        self.delay = 0.0
        self.asked: list[tuple[str, Obj]] = []

    @property
    def authority_bundle(self) -> str:
        return base64.b64encode(self.authority_pem.encode()).decode()

    def reviews(self, path: str) -> list[Obj]:
        return [review for asked, review in self.asked if asked == path]

    async def handle(self, request: Request) -> Response:
        review = await request.json()
        self.asked.append((request.url.path, review))
        if request.url.path == "/mutate":
            await anyio.sleep(self.delay)
        answer = (self.mutate if request.url.path == "/mutate" else self.validate)(review)
        if isinstance(answer, int):
            return Response(b"", answer)
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return Response(body, media_type="application/json")


@asynccontextmanager
async def webhooks() -> AsyncIterator[Webhooks]:
    hooks = Webhooks()
    app = Starlette(routes=[Route("/{path:path}", hooks.handle, methods=["POST"])])
    authority = trustme.CA()
    hooks.authority_pem = authority.cert_pem.bytes().decode()
    with tempfile.TemporaryDirectory() as folder:
        issued = authority.issue_cert("127.0.0.1")
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        async with anyio.create_task_group() as tasks:
            served = partial(serve, app, bind="127.0.0.1:0", tls=Tls(str(certificate), str(key)), grace_s=1)
            hooks.url = await tasks.start(served)
            yield hooks
            tasks.cancel_scope.cancel()
