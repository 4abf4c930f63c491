"""One request, taken apart as the API server reads it, and the answer to it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hami.sim.apiserver.admission import User
from hami.sim.apiserver.errors import ApiRefusal, Obj
from hami.sim.apiserver.kinds import BY_PATH, NAMESPACES, PODS, Resource


@dataclass(frozen=True, slots=True)
class Target:
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    target: Target
    user: User
    query: Mapping[str, str]
    body: bytes
    content_type: str
    accept: str

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    @property
    def watching(self) -> bool:
        return self.method == "GET" and not self.target.name and self.query.get("watch", "").lower() in {"1", "true"}

    def decoded(self) -> Any:
        if self.content_type.startswith("application/vnd.kubernetes.protobuf"):
            why = "the body of the request was in an unknown format - accepted media types include: application/json"
            raise ApiRefusal(415, why)
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            why = "unexpected end of JSON input" if "truncated" in str(error) else str(error)
            kind, text = self.target.resource.kind, self.body.decode(errors="replace")
            raise ApiRefusal(
                400,
                f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
                f"json parse error: {why} ({text})",
            ) from None

    def decoded_object(self) -> Obj:
        decoded = self.decoded()
        if not isinstance(decoded, dict):
            raise ApiRefusal(400, f"the object provided is unrecognized (must be of type {self.target.resource.kind})")
        return decoded


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes | AsyncIterator[bytes]
    warnings: list[str] = field(default_factory=list)
    content_type: str = "application/json"


def json_answer(status: int, obj: Any, warnings: list[str] | None = None) -> Answer:
    return Answer(status, msgspec.json.encode(obj), warnings or [])


def target_of(path: str) -> Target | None:
    """The resource a path names; None for paths that are no resource (discovery, or nothing)."""
    parts = [each for each in path.split("/") if each]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if (group, rest) == ("", ["bindings"]) and namespace:
        return Target(PODS, namespace, "", "binding")
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource and subresource not in resource.subresources:
        return None
    if resource is NAMESPACES and namespace:
        return None
    return Target(resource, namespace, name, subresource)
