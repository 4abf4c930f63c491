"""From an HTTP request to a handler: who asks, what for, which fault stands in the way, and how the answer goes out."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hami.sim.apiserver import binding, discovery, reading, removing, writing
from hami.sim.apiserver.admission import User
from hami.sim.apiserver.call import Answer, Call, Target, json_answer, target_of
from hami.sim.apiserver.core import Core
from hami.sim.apiserver.errors import ApiRefusal, details_of, gone, qualified
from hami.sim.apiserver.faults import Fault, Faults

ADMIN = User()
Allows = Callable[[User, str, Target], bool]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PROTOBUF_SCHEMA = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class Dispatch:
    """The ASGI application. `tokens` None lets everyone in as admin; otherwise a bearer token must be known."""

    def __init__(self, core: Core, faults: Faults, tokens: Mapping[str, User] | None, allows: Allows | None) -> None:
        self._core, self._faults, self._tokens, self._allows = core, faults, tokens, allows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        target_text = f"{request.url.path}?{request.url.query}"
        watching = request.query_params.get("watch", "").lower() in {"1", "true"}
        fault = self._faults.next(request.method, target_text, watch=watching)
        if fault is not None and await self._broken(fault, request, scope, send, receive):
            return
        response = await self._respond(request, fault)
        if fault is not None and fault.drop_answer:
            await _hang_up(request)
            return
        await response(scope, receive, send)

    async def _broken(self, fault: Fault, request: Request, scope: Scope, send: Send, receive: Receive) -> bool:
        """Apply what happens instead of the request; whether that was all."""
        if fault.delay:
            await anyio.sleep(fault.delay)
        if fault.drop:
            await _hang_up(request)
            return True
        if fault.status:
            details = {"retryAfterSeconds": fault.retry_after} if fault.retry_after else None
            refused = ApiRefusal(fault.status, fault.message, details=details)
            headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else None
            answer = json_answer(fault.status, refused.status)
            await Response(cast("bytes", answer.body), fault.status, headers, answer.content_type)(scope, receive, send)
            return True
        return False

    async def _respond(self, request: Request, fault: Fault | None) -> Response:
        try:
            user = self._user(request)
            target = target_of(request.url.path)
            if target is None:
                return _document(request)
            body = await request.body()
            answer = await self._handled(_call(request, target, user, body))
        except ApiRefusal as refused:
            answer = json_answer(refused.code, refused.status)
        headers = [("Warning", f'299 - "{text}"') for text in answer.warnings]
        if isinstance(answer.body, bytes):
            response = Response(answer.body, answer.status, media_type=answer.content_type)
        else:
            stream = answer.body if fault is None else _faulty(answer.body, fault, request)
            response = StreamingResponse(stream, answer.status, media_type=answer.content_type)
        for name, value in headers:
            response.headers.append(name, value)
        return response

    def _user(self, request: Request) -> User:
        if self._tokens is None:
            return ADMIN
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = self._tokens.get(token) if scheme.lower() == "bearer" else None
        if found is None:
            raise ApiRefusal(401, "Unauthorized")
        return found

    async def _handled(self, call: Call) -> Answer:
        verb = _verb(call)
        if self._allows is not None and not self._allows(call.user, verb, call.target):
            raise _forbidden(call, verb)
        core, sub = self._core, call.target.subresource
        if sub in {"binding", "eviction"}:
            if call.method != "POST":
                raise _not_allowed()
            return await (binding.bind if sub == "binding" else removing.evict)(core, call)
        if verb in {"get", "list", "watch"}:
            return {"get": reading.get, "list": reading.list_, "watch": reading.watch}[verb](core, call)
        if verb == "deletecollection" or (verb == "delete" and not sub):
            return await (removing.delete if verb == "delete" else removing.delete_collection)(core, call)
        write = {"update": writing.put, "patch": writing.apply_patch} if call.target.name else {"create": writing.create}
        if verb not in write:
            raise _not_allowed()
        return await write[verb](core, call)


def _call(request: Request, target: Target, user: User, body: bytes) -> Call:
    headers = request.headers
    query = dict(request.query_params)
    return Call(request.method, target, user, query, body, headers.get("content-type", ""), headers.get("accept", ""))


def _verb(call: Call) -> str:
    if call.method in {"GET", "HEAD"}:
        return "get" if call.target.name else "watch" if call.watching else "list"
    if call.method == "DELETE" and not call.target.name:
        return "deletecollection"
    return _VERBS.get(call.method, call.method.lower())


def _forbidden(call: Call, verb: str) -> ApiRefusal:
    target, resource = call.target, call.target.resource
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    plural = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    named = (
        f'{qualified(resource.plural, resource.group)} "{target.name}"'
        if target.name
        else qualified(resource.plural, resource.group)
    )
    asked = f'resource "{plural}" in API group "{resource.group}" {where}'
    message = f'{named} is forbidden: User "{call.user.name}" cannot {verb} {asked}'
    return ApiRefusal(403, message, details=details_of(target.name, resource.plural, resource.group))


def _not_allowed() -> ApiRefusal:
    return ApiRefusal(405, "the server does not allow this method on the requested resource", details={})


def _document(request: Request) -> Response:
    if request.url.path == "/openapi/v2":
        # An empty schema: kubectl then validates nothing on its side.
        return Response(b"", media_type=_PROTOBUF_SCHEMA)
    found = discovery.document(request.url.path)
    if found is None:
        return PlainTextResponse("404 page not found\n", 404)
    if isinstance(found, str):
        return PlainTextResponse(found)
    answer = json_answer(200, found)
    return Response(cast("bytes", answer.body), 200, media_type=answer.content_type)


async def _hang_up(request: Request) -> None:
    """Close the socket under the request, as a crashed server or a broken network does."""
    request.scope["state"]["transport"].abort()
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _faulty(stream: AsyncIterator[bytes], fault: Fault, request: Request) -> AsyncIterator[bytes]:
    """A watch with its fault: bytes put in, and an end that comes too soon."""
    if fault.inject:
        yield fault.inject
    if fault.expire:
        yield reading.error_line(gone("too old resource version: 1 (2)").status)
        return
    sent = 0
    async for chunk in stream:
        for line in chunk.splitlines(keepends=True):
            if sent == fault.close_after:
                break
            sent += 1
            yield line
        if sent == fault.close_after:
            break
    if fault.cut:
        yield b'{"type":"MODIFIED","object":{"kind":'
        await anyio.sleep(0.01)
        request.scope["state"]["transport"].abort()
