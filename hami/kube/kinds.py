"""The kinds hami reads and writes, and the partial structs it decodes them into."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from hami.domain.pod import Node, ObjectMeta, Pod, ResourceQuota


class HasMetadata(Protocol):
    """What every listed or watched object has."""

    @property
    def metadata(self) -> ObjectMeta: ...


T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)


class Bare(msgspec.Struct, frozen=True, kw_only=True):
    """An object of which only the metadata matters."""

    metadata: ObjectMeta = ObjectMeta()


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """One resource: where it is served, and the struct that one object is decoded into."""

    plural: str
    kind: str
    type: type[T_co]
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [each for each in (name, subresource) if each]
        return "/".join(parts)

    def described(self, obj: dict[str, Any]) -> dict[str, Any]:
        """The object with its kind and version filled in."""
        return {"apiVersion": self.api_version, "kind": self.kind, **obj}


PODS: Kind[Pod] = Kind("pods", "Pod", Pod)
NODES: Kind[Node] = Kind("nodes", "Node", Node, namespaced=False)
QUOTAS: Kind[ResourceQuota] = Kind("resourcequotas", "ResourceQuota", ResourceQuota)
LEASES: Kind[Lease] = Kind("leases", "Lease", Lease, group="coordination.k8s.io")
EVENTS: Kind[Bare] = Kind("events", "Event", Bare)
EVENTS_V1: Kind[Bare] = Kind("events", "Event", Bare, group="events.k8s.io")
NAMESPACES: Kind[Bare] = Kind("namespaces", "Namespace", Bare, namespaced=False)
PRIORITY_CLASSES: Kind[Bare] = Kind("priorityclasses", "PriorityClass", Bare, group="scheduling.k8s.io", namespaced=False)
CONFIG_MAPS: Kind[Bare] = Kind("configmaps", "ConfigMap", Bare)
MUTATING_WEBHOOKS: Kind[Bare] = Kind(
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    Bare,
    group="admissionregistration.k8s.io",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Kind[Bare] = Kind(
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    Bare,
    group="admissionregistration.k8s.io",
    namespaced=False,
)
