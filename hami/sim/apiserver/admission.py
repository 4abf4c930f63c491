"""Admission webhooks: which are called for a request, what they are sent, and what their answers do to it."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import jsonpatch
import msgspec

from hami.sim.apiserver import https
from hami.sim.apiserver.errors import ApiRefusal, Obj, internal
from hami.sim.apiserver.kinds import MUTATING, VALIDATING, Resource
from hami.sim.apiserver.selectors import label_selector_object
from hami.sim.apiserver.store import Store

_REVIEW = "admission.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class User:
    name: str = "admin"
    groups: tuple[str, ...] = ("system:masters", "system:authenticated")

    @property
    def info(self) -> Obj:
        return {"username": self.name, "uid": self.name, "groups": list(self.groups)}


@dataclass(slots=True)
class Review:
    """One request under admission. `object` and `old` carry kind and apiVersion, as webhooks see them."""

    resource: Resource
    operation: str
    user: User
    name: str
    namespace: str
    object: Obj | None
    old: Obj | None
    subresource: str = ""
    kind: tuple[str, str, str] | None = None
    dry_run: bool = False
    options: Obj = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def request(self, uid: str) -> Obj:
        group, version, kind = self.kind or (self.resource.group, self.resource.version, self.resource.kind)
        gvk = {"group": group, "version": version, "kind": kind}
        gvr = {"group": self.resource.group, "version": self.resource.version, "resource": self.resource.plural}
        body: Obj = {"uid": uid, "kind": gvk, "resource": gvr}
        if self.subresource:
            body["subResource"] = self.subresource
        body |= {"requestKind": gvk, "requestResource": gvr}
        if self.subresource:
            body["requestSubResource"] = self.subresource
        if self.name:
            body["name"] = self.name
        if self.namespace:
            body["namespace"] = self.namespace
        option = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}[self.operation]
        return body | {
            "operation": self.operation,
            "userInfo": self.user.info,
            "object": self.object,
            "oldObject": self.old,
            "dryRun": self.dry_run,
            "options": {"kind": option, "apiVersion": "meta.k8s.io/v1", **self.options},
        }


class _CallError(Exception):
    """The call failed in a way that `failurePolicy` governs."""


class Admission:
    def __init__(self, store: Store, new_uid: Callable[[], str], services: Mapping[str, tuple[str, int]]) -> None:
        """`services` says where `clientConfig.service` (`namespace/name`) is reached."""
        self._store, self._new_uid, self._services = store, new_uid, services
        self._caller = https.Caller()

    async def aclose(self) -> None:
        await self._caller.aclose()

    def _hooks(self, kind: Resource, review: Review) -> list[Obj]:
        if review.resource.group == kind.group:
            return []  # webhooks are not asked about webhooks
        shelf = self._store.shelf(kind.store_key)
        configured = [hook for stored in shelf.in_order() for hook in stored.obj.get("webhooks") or []]
        return [hook for hook in configured if self._applies(hook, review)]

    def _applies(self, hook: Obj, review: Review) -> bool:
        if not any(_rule_matches(rule, review) for rule in hook.get("rules") or []):
            return False
        if not label_selector_object(hook.get("namespaceSelector"), self._namespace_labels(review)):
            return False
        wanted = hook.get("objectSelector")
        # Either version may match: an object cannot leave a webhook's reach by the very update that it guards.
        return any(each is not None and label_selector_object(wanted, _labels(each)) for each in (review.object, review.old))

    def _namespace_labels(self, review: Review) -> Mapping[str, str]:
        if not review.namespace:
            return {}
        found = self._store.get("/namespaces", "", review.namespace)
        return {} if found is None else _labels(found.obj)

    async def mutate(self, review: Review, normalise: Callable[[Obj], Obj]) -> None:
        """Let every mutating webhook that applies change `review.object`; `normalise` decodes and fills in each result."""
        for hook in self._hooks(MUTATING, review):
            response = await self._ask(hook, review)
            if response is None:
                continue
            _judge(hook, response, review)
            if response.get("patch") and review.object is not None:
                try:
                    operations = _operations(response)
                except _CallError as error:
                    _fail_or_ignore(hook, error)
                    continue
                review.object = normalise(_patched(review.object, operations))

    async def validate(self, review: Review) -> None:
        for hook in self._hooks(VALIDATING, review):
            response = await self._ask(hook, review)
            if response is None:
                continue
            if response.get("patch"):
                why = "received invalid webhook response: validating webhook may not return response.patch"
                _fail_or_ignore(hook, _CallError(why))
                continue
            _judge(hook, response, review)

    async def _ask(self, hook: Obj, review: Review) -> Obj | None:
        try:
            return await self._call(hook, review)
        except _CallError as error:
            _fail_or_ignore(hook, error)
            return None

    async def _call(self, hook: Obj, review: Review) -> Obj:
        uid = self._new_uid()
        body = msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": _REVIEW, "request": review.request(uid)})
        seconds = hook.get("timeoutSeconds", 10)
        url, address = self._target(hook["clientConfig"], seconds)
        bundle = base64.b64decode(hook["clientConfig"].get("caBundle") or "").decode()
        try:
            with anyio.fail_after(seconds):
                status, answer = await self._caller.post(url, body, authority=bundle, address=address)
        except TimeoutError:
            raise _CallError(f'failed to call webhook: Post "{url}": context deadline exceeded') from None
        except https.CallFailed as error:
            raise _CallError(f'failed to call webhook: Post "{url}": {error}') from error
        if not 200 <= status < 300:
            why = 'an error on the server ("unknown") has prevented the request from succeeding'
            raise _CallError(f"failed to call webhook: {why}")
        return _response_of(answer, uid)

    def _target(self, client: Obj, seconds: int) -> tuple[str, tuple[str, int] | None]:
        if "url" in client:
            base: str = client["url"]
            return f"{base}{'&' if '?' in base else '?'}timeout={seconds}s", None
        service = client["service"]
        key = f"{service['namespace']}/{service['name']}"
        port, path = service.get("port", 443), service.get("path") or "/"
        url = f"https://{service['name']}.{service['namespace']}.svc:{port}{path}?timeout={seconds}s"
        if key not in self._services:
            raise _CallError(f'failed to call webhook: Post "{url}": service "{service["name"]}" not found')
        return url, self._services[key]


def _labels(obj: Obj) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _rule_matches(rule: Obj, review: Review) -> bool:
    if not _among(rule.get("operations"), review.operation):
        return False
    if not _among(rule.get("apiGroups"), review.resource.group) or not _among(rule.get("apiVersions"), review.resource.version):
        return False
    if rule.get("scope", "*") not in {"*", "Namespaced" if review.resource.namespaced else "Cluster"}:
        return False
    return any(_resource_matches(each, review.resource.plural, review.subresource) for each in rule.get("resources") or [])


def _among(listed: list[str] | None, value: str) -> bool:
    return listed is not None and ("*" in listed or value in listed)


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    wanted, slash, wanted_sub = pattern.partition("/")
    if wanted not in {"*", plural}:
        return False
    if not slash:
        return subresource == ""
    return wanted_sub in {"*", subresource}


def _fail_or_ignore(hook: Obj, error: _CallError) -> None:
    if hook.get("failurePolicy", "Fail") != "Ignore":
        raise internal(f'failed calling webhook "{hook["name"]}": {error}')


def _response_of(answer: bytes, uid: str) -> Obj:
    try:
        decoded: Any = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise _CallError(f"failed to call webhook: {error}") from error
    if not isinstance(decoded, dict):
        raise _CallError("received invalid webhook response: webhook response was absent")
    version, kind = decoded.get("apiVersion") or "", decoded.get("kind") or ""
    if (version, kind) != (_REVIEW, "AdmissionReview"):
        got = f"{version or '/'}, Kind={kind}"
        raise _CallError(
            f"received invalid webhook response: expected webhook response of {_REVIEW}, Kind=AdmissionReview, got {got}"
        )
    response = decoded.get("response")
    if not isinstance(response, dict):
        raise _CallError("received invalid webhook response: webhook response was absent")
    if response.get("uid") != uid:
        got = response.get("uid") or ""
        raise _CallError(f'received invalid webhook response: expected response.uid="{uid}", got "{got}"')
    if response.get("patch") and not response.get("patchType"):
        why = "webhook returned response.patch but not response.patchType"
        raise _CallError(f"received invalid webhook response: {why}")
    return response


def _judge(hook: Obj, response: Obj, review: Review) -> None:
    """Take the webhook's warnings, and refuse the request if it is denied."""
    review.warnings += response.get("warnings") or []
    if response.get("allowed"):
        return
    status = response.get("status") or {}
    message, reason = status.get("message") or "", status.get("reason") or ""
    told = f'admission webhook "{hook["name"]}" denied the request'
    told += f": {message or reason}" if message or reason else " without explanation"
    raise ApiRefusal(status.get("code") or 400, told, reason=reason)


def _operations(response: Obj) -> list[Obj]:
    undecodable = "received undecodable patch in webhook response: "
    try:
        text = base64.b64decode(response["patch"], validate=True)
    except (binascii.Error, TypeError):
        raise _CallError(undecodable + "illegal base64 data") from None
    try:
        operations: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        first = text[:1].decode(errors="replace")
        raise _CallError(f"{undecodable}invalid character '{first}' looking for beginning of value") from None
    if not isinstance(operations, list):
        raise _CallError(undecodable + "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    return operations


def _patched(target: Obj, operations: list[Obj]) -> Obj:
    """Apply one operation after the other; one that does not fit ends the request whatever `failurePolicy` says."""
    here = target
    for operation in operations:
        try:
            here = jsonpatch.JsonPatch([operation]).apply(here)
        except jsonpatch.JsonPatchTestFailed:
            raise internal(f"testing value {operation['path']} failed: test failed") from None
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            name, path = operation.get("op"), operation.get("path")
            raise internal(f'{name} operation does not apply: doc is missing path: "{path}": missing value') from None
    return here
