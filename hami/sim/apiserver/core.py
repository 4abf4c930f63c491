"""What every handler shares: the store, admission, a clock, and the small rules of reading and naming objects."""

import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import anyio
import msgspec

from hami.sim.apiserver import events
from hami.sim.apiserver.admission import Admission
from hami.sim.apiserver.call import Target
from hami.sim.apiserver.defaults import filled, quality_of_service
from hami.sim.apiserver.errors import Obj, not_found
from hami.sim.apiserver.kinds import NAMESPACES, RESOURCES, Resource
from hami.sim.apiserver.store import Store, Stored

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


def wall_clock() -> datetime:
    return datetime.now(UTC)


class Core:
    def __init__(
        self,
        *,
        ring_size: int = 10_000,
        bookmark_every: float = 60.0,
        seed: int = 0,
        clock: Callable[[], datetime] = wall_clock,
        services: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self.store = Store(ring_size=ring_size)
        self.admission = Admission(self.store, self.new_uid, services or {})
        self.bookmark_every = bookmark_every
        self.closing = False
        self._random = random.Random(seed)
        self._clock = clock
        for name in ("default", "kube-system"):
            self.load(NAMESPACES, [{"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}])

    def new_uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def name_suffix(self) -> str:
        return "".join(self._random.choices(_SUFFIX, k=5))

    def now(self) -> datetime:
        return self._clock()

    def stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def find(self, target: Target) -> Stored:
        """The stored object, or the 404 that says it is missing."""
        resource = target.resource
        found = self.store.get(resource.store_key, target.namespace, target.name)
        if found is None:
            raise not_found(resource.plural, resource.group, target.name)
        return found

    def load(self, resource: Resource, objects: Iterable[Obj]) -> None:
        """Seed objects at once: defaults, uid and creation time are filled in; no admission, no watch events."""
        self.store.load(resource.store_key, (self._born(resource, each) for each in objects))

    def _born(self, resource: Resource, obj: Obj) -> Obj:
        bare = {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}
        meta = {"uid": self.new_uid(), "creationTimestamp": self.stamp(), **obj["metadata"]}
        if resource.generation:
            meta.setdefault("generation", 1)
        born = filled(resource, {**bare, "metadata": meta})
        if resource.kind == "Pod":
            born["status"] = {"phase": "Pending", "qosClass": quality_of_service(born["spec"]), **born["status"]}
            born["spec"] = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **born["spec"]}
        return born

    async def aclose(self) -> None:
        """End every open watch and let go of the webhooks."""
        self.closing = True
        for resource in RESOURCES:
            self.store.shelf(resource.store_key).wake()
        with anyio.CancelScope(shield=True):
            await self.admission.aclose()


def full(resource: Resource, obj: Obj) -> Obj:
    """The object as it stands alone in an answer: with its kind and version."""
    return {"kind": resource.kind, "apiVersion": resource.api_version, **events.shown(resource, obj)}


def bare(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}


def stripped(resource: Resource, obj: Obj) -> Obj:
    """The inverse of `full`: as it is stored."""
    return events.kept(resource, bare(obj))


def full_json(resource: Resource, stored: Stored) -> bytes:
    """The same as bytes, made from the object's kept JSON where the version allows it."""
    if resource.group == "events.k8s.io":
        return msgspec.json.encode(full(resource, stored.obj))
    head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'
    return head.encode() + stored.json[1:]
