"""Admission: `/mutate` (HAMi's `/webhook` too) prepares pods that ask for devices, `/validate` guards what they rest on.

Creating pods works while the event store is away: mutating needs the view for quotas only, and filter asks about those again.
A Binding needs the view: without it the answer is no, and kube-scheduler tries again.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from hami.domain.allocation import Allocation
from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import HamiError, InvalidInput, StoreUnavailable
from hami.domain.pod import Pod
from hami.scheduler.admission import (
    Binding,
    Request,
    Review,
    allowed,
    decode_binding,
    decode_pod,
    decode_review,
    denied,
    salvaged,
)
from hami.scheduler.core import Api
from hami.scheduler.decide import admit, validate
from hami.scheduler.decide.admit import AdmissionSettings, Admitted, Denied, Ignored
from hami.scheduler.extender import Door
from hami.telemetry import get_logger
from hami.vendors.requests import pod_request

BUDGET_S: Final = 3.0
_log = get_logger("scheduler.webhook")


class Webhook:
    """`control_plane`: user names that may write reserved keys and bindings."""

    def __init__(self, door: Door, api: Api, settings: AdmissionSettings, control_plane: frozenset[str]) -> None:
        self._door, self._api, self._settings, self._control_plane = door, api, settings, control_plane

    def routes(self) -> Sequence[BaseRoute]:
        return [
            Route("/mutate", self._on(self._mutate), methods=["POST"]),
            Route("/webhook", self._on(self._mutate), methods=["POST"]),
            Route("/validate", self._on(self._validate), methods=["POST"]),
        ]

    def _on(self, judge: "Callable[[Review, Request], Awaitable[bytes]]") -> Callable[[HttpRequest], Awaitable[Response]]:
        async def answer(http: HttpRequest) -> Response:
            body = await http.body()
            try:
                review = decode_review(body)
            except InvalidInput as error:
                return _undecodable(body, error)
            request = review.request
            assert request is not None
            try:
                with anyio.fail_after(BUDGET_S):
                    answered = await judge(review, request)
            except InvalidInput as error:
                answered = denied(review.api_version, request.uid, 422, str(error))
            except (HamiError, TimeoutError) as error:
                _log.warning("admission not decided", uid=request.uid, error=str(error) or type(error).__name__)
                answered = denied(review.api_version, request.uid, 503, "hami cannot judge this request now, try again")
            return Response(answered, media_type="application/json")

        return answer

    async def _mutate(self, review: Review, request: Request) -> bytes:
        version, uid = review.api_version, request.uid
        # 1. Only the creation of a pod can be changed, and of a container that joins it later.
        if (request.operation, request.sub_resource) == ("UPDATE", "ephemeralcontainers"):
            return self._debuggers(review, request)
        if request.operation != "CREATE" or request.sub_resource or request.resource.resource not in {"pods", ""}:
            return allowed(version, uid)
        pod = decode_pod(request.object, "request.object")
        if pod is None:
            raise InvalidInput("request.object", None, "is missing")
        # 2. The object may lack its namespace where an older API server asks.
        if not pod.metadata.namespace:
            pod = replace(pod, metadata=replace(pod.metadata, namespace=request.namespace))
        # 3. Judge.
        verbs = self._door.verbs
        snapshot = ClusterSnapshot() if verbs is None else verbs.core.view.snapshot()
        match admit.mutate(pod, self._settings, snapshot):
            case Denied(code, message):
                return denied(version, uid, code, message)
            case Ignored(message):
                return allowed(version, uid, message=message)
            case Admitted(patch=patch, warnings=warnings):
                return allowed(version, uid, patch=patch, warnings=warnings)

    def _debuggers(self, review: Review, request: Request) -> bytes:
        old, new = decode_pod(request.old_object, "request.oldObject"), decode_pod(request.object, "request.object")
        return allowed(review.api_version, request.uid, patch=admit.debuggers(old or Pod(), new or Pod()).patch)

    async def _validate(self, review: Review, request: Request) -> bytes:
        version, uid = review.api_version, request.uid
        # 1. A Binding, or the legacy `bindings` resource with the same object.
        if request.sub_resource == "binding" or request.resource.resource == "bindings":
            verdict = await self._binding(request)
        # 2. A pod: created, or changed in any of its parts.
        elif request.resource.resource in {"pods", ""}:
            old = decode_pod(request.old_object, "request.oldObject")
            new = decode_pod(request.object, "request.object")
            seen = validate.Review(
                operation=request.operation,
                subresource=request.sub_resource,
                old=old,
                new=new,
                username=request.user_info.username,
            )
            verdict = validate.validate(seen, self._settings, self._control_plane)
        else:
            verdict = validate.Allowed()
        if isinstance(verdict, Denied):
            return denied(version, uid, verdict.code, verdict.message)
        return allowed(version, uid)

    async def _binding(self, request: Request) -> validate.Allowed | Denied:
        binding = decode_binding(request.object, "request.object")
        if binding is None:
            raise InvalidInput("request.object", None, "is missing")
        pod_uid, ours = await self._bound_pod(request, binding)
        review = validate.BindingReview(
            pod_uid=pod_uid,
            node=binding.target.name,
            username=request.user_info.username,
            annotations=binding.metadata.notes,
            ours=ours,
        )
        live = await self._live(pod_uid, binding.target.name) if ours and pod_uid else None
        return validate.validate_binding(review, live, self._settings, self._control_plane)

    async def _bound_pod(self, request: Request, binding: Binding) -> tuple[str, bool]:
        """The pod's uid, and whether it asks for devices. The review of a Binding shows neither its spec nor its labels."""
        uid, verbs = binding.metadata.uid, self._door.verbs
        if uid and verbs is not None and verbs.core.view.snapshot().allocation_of(uid) is not None:
            return uid, True
        namespace, name = request.namespace or binding.metadata.namespace, request.name or binding.metadata.name
        pod = await self._api.get_pod(namespace, name)
        if pod is None:
            return uid, False
        return pod.metadata.uid, pod_request(pod, self._settings.vendors).asks_for_devices

    async def _live(self, pod_uid: str, node: str) -> Allocation | None:
        """Another replica may have decided a moment ago: unless the view says yes, the head of the log is asked."""
        verbs = self._door.verbs
        if verbs is None:
            raise StoreUnavailable(self._door.why_closed)
        core = verbs.core
        found = core.view.snapshot().allocation_of(pod_uid)
        if found is None or found.reservation.node != node:
            await core.catch_up()
            found = core.view.snapshot().allocation_of(pod_uid)
        return found


def _undecodable(body: bytes, error: InvalidInput) -> Response:
    known = salvaged(body)
    if known is None:
        return PlainTextResponse(f"{error}\n", 400)
    version, uid = known
    return Response(denied(version, uid, 400, str(error)), media_type="application/json")
