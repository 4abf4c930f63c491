"""Which resources the server knows: names, scope, subresources and the fields that can be selected on."""

from dataclasses import dataclass, field

_META = ("metadata.name", "metadata.namespace")
_READ_WRITE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    singular: str
    namespaced: bool
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = field(default=_META)
    unconditional_update: bool = True
    create_on_update: bool = False
    generation: bool = False
    storage: str = ""
    """Resources of one storage name are the same objects seen in two versions (events)."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def store_key(self) -> str:
        return self.storage or f"{self.group}/{self.plural}"

    def registry_key(self, namespace: str, name: str) -> str:
        """Where the real server keeps it in etcd: it stands in the texts of failed preconditions."""
        folder = {"nodes": "minions"}.get(self.plural, self.plural)
        return f"{folder}/{namespace}/{name}" if self.namespaced else f"{folder}/{name}"

    @property
    def verbs(self) -> tuple[str, ...]:
        return _READ_WRITE


_POD_FIELDS = (
    *_META,
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    *_META,
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)

PODS = Resource(
    "",
    "v1",
    "pods",
    "Pod",
    "pod",
    True,
    ("po",),
    ("binding", "ephemeralcontainers", "eviction", "resize", "status"),
    selectable=_POD_FIELDS,
    generation=True,
)
BINDINGS = Resource("", "v1", "bindings", "Binding", "binding", True)
"""Only ever posted to: the old way of binding, without a pod in the path."""
NODES = Resource("", "v1", "nodes", "Node", "node", False, ("no",), ("status",), selectable=(*_META, "spec.unschedulable"))
NAMESPACES = Resource(
    "", "v1", "namespaces", "Namespace", "namespace", False, ("ns",), ("status",), selectable=(*_META, "status.phase")
)
EVENTS = Resource("", "v1", "events", "Event", "event", True, ("ev",), selectable=_EVENT_FIELDS, storage="events")
EVENTS_V1 = Resource(
    "events.k8s.io", "v1", "events", "Event", "event", True, ("ev",), selectable=_EVENT_FIELDS, storage="events"
)
LEASES = Resource(
    "coordination.k8s.io", "v1", "leases", "Lease", "lease", True, unconditional_update=False, create_on_update=True
)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", "priorityclass", False, ("pc",))
MUTATING = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfiguration",
    False,
    generation=True,
)
VALIDATING = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfiguration",
    False,
    generation=True,
)

RESOURCES: tuple[Resource, ...] = (
    Resource("", "v1", "configmaps", "ConfigMap", "configmap", True, ("cm",)),
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    Resource("", "v1", "resourcequotas", "ResourceQuota", "resourcequota", True, ("quota",), ("status",)),
    Resource("", "v1", "secrets", "Secret", "secret", True),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", "serviceaccount", True, ("sa",)),
    MUTATING,
    VALIDATING,
    LEASES,
    EVENTS_V1,
    PRIORITY_CLASSES,
)
BY_PATH: dict[tuple[str, str, str], Resource] = {(each.group, each.version, each.plural): each for each in RESOURCES}
