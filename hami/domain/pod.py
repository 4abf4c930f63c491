"""The parts of Kubernetes objects that hami reads, as the API writes them (camelCase JSON; everything else is ignored).

Quantities stay as written (`"8k"`, `"16Gi"`, `1`): a vendor's parser converts them, with the field's name in its error.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

Quantity = str | int | float
_EMPTY: Mapping[str, str] = MappingProxyType({})


class _Api(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class ObjectMeta(_Api, frozen=True, rename="camel", kw_only=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def notes(self) -> Mapping[str, str]:
        """Annotations, never None."""
        return self.annotations or _EMPTY


class Resources(_Api, frozen=True, rename="camel", kw_only=True):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class EnvVar(_Api, frozen=True, rename="camel", kw_only=True):
    name: str
    value: str | None = None
    value_from: dict[str, object] | None = None


class SecurityContext(_Api, frozen=True, rename="camel", kw_only=True):
    privileged: bool | None = None


class Container(_Api, frozen=True, rename="camel", kw_only=True):
    name: str = ""
    image: str = ""
    resources: Resources | None = None
    env: list[EnvVar] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None

    def limit(self, resource: str) -> Quantity | None:
        """Limits first, then requests, as HAMi reads them."""
        if self.resources is None:
            return None
        limits, requests = self.resources.limits or {}, self.resources.requests or {}
        return limits.get(resource, requests.get(resource))


class SchedulingGroup(_Api, frozen=True, rename="camel", kw_only=True):
    pod_group_name: str = ""


class PodSpec(_Api, frozen=True, rename="camel", kw_only=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None


class StateTerminated(_Api, frozen=True, rename="camel", kw_only=True):
    exit_code: int = 0
    reason: str | None = None


class ContainerState(_Api, frozen=True, rename="camel", kw_only=True):
    terminated: StateTerminated | None = None


class ContainerStatus(_Api, frozen=True, rename="camel", kw_only=True):
    name: str = ""
    ready: bool = False
    state: ContainerState | None = None


class PodStatus(_Api, frozen=True, rename="camel", kw_only=True):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Api, frozen=True, rename="camel", kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus | None = None

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        return self.status is not None and self.status.phase in {"Succeeded", "Failed"}


class NodeSpec(_Api, frozen=True, rename="camel", kw_only=True):
    unschedulable: bool | None = None


class NodeStatus(_Api, frozen=True, rename="camel", kw_only=True):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None


class Node(_Api, frozen=True, rename="camel", kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus | None = None


class QuotaSpec(_Api, frozen=True, rename="camel", kw_only=True):
    hard: dict[str, Quantity] | None = None


class ResourceQuota(_Api, frozen=True, rename="camel", kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: QuotaSpec = QuotaSpec()
