"""The mutating webhook: what is added to a pod that asks for devices, and what is refused before it exists.

A pod that asks is marked by a label, goes to our scheduler, and its containers refer to annotations that only the Binding
writes (docs/delivery.md). A pod whose request cannot be read is refused: it would run without being counted.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hami.domain.cluster import ClusterSnapshot
from hami.domain.errors import InvalidInput
from hami.domain.pod import Container, EnvVar, Pod, Quantity
from hami.domain.request import ContainerRequest, PodRequest
from hami.scheduler.decide import patch, quota
from hami.scheduler.decide.patch import Operation
from hami.vendors import admission, identity
from hami.vendors.registry import by_word
from hami.vendors.requests import containers_of, malformed, pod_request
from hami.vendors.vendor import Refused, Vendor

_DEFAULT_SCHEDULER: Final = "default-scheduler"
_BLIND: Final = EnvVar(name=identity.VISIBLE_ENV, value=identity.NO_DEVICE)


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Let the pod in with these JSON Patch operations (none = unchanged)."""

    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


class Denied(msgspec.Struct, frozen=True):
    """Refuse: HTTP code and message as the user sees them."""

    code: int
    message: str


class Ignored(msgspec.Struct, frozen=True):
    """Not ours: let the pod in untouched, saying why."""

    message: str


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`scheduler_name` empty: pods keep their scheduler."""

    vendors: tuple[Vendor, ...]
    scheduler_name: str = "hami-scheduler"
    force_overwrite: bool = True

    @property
    def reserved(self) -> frozenset[str]:
        return identity.reserved_keys(key for each in self.vendors for key in (each.keys.allocated, each.keys.mig))


class _Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One container's part: what is added to it and to its pod; `claimed` = the vendors whose devices it asks for."""

    place: str
    container: Container
    limits: dict[str, Quantity]
    requests: dict[str, Quantity]
    env: tuple[EnvVar, ...]
    notes: dict[str, str]
    claimed: tuple[Vendor, ...]


def mutate(pod: Pod, settings: AdmissionSettings, snapshot: ClusterSnapshot) -> Admitted | Denied | Ignored:
    if not pod.spec.containers:
        return Denied(403, "pod has no containers")
    if _other_scheduler(pod, settings):
        return Ignored("pod already has different scheduler assigned")
    refused = _refused_keys(pod, settings)
    if refused is not None:
        return refused
    changed = _changes(pod, settings.vendors)
    if isinstance(changed, Denied):
        return changed
    refused = _refused_quantity(pod, settings)
    if refused is not None:
        return refused
    ours = any(each.claimed for each in changed)
    refused = _refused_company(pod, settings, ours=ours)
    if refused is not None:
        return refused
    try:
        request = pod_request(_after(pod, changed), settings.vendors)
    except InvalidInput as error:
        return Denied(422, str(error))
    if quota.exceeded(snapshot, request, settings.vendors) is not None:
        return Denied(403, "exceeding resource quota")
    return _with_identity(pod, settings, changed, request, ours=ours)


def _other_scheduler(pod: Pod, settings: AdmissionSettings) -> bool:
    name = pod.spec.scheduler_name
    if not name or (name == _DEFAULT_SCHEDULER and settings.force_overwrite):
        return False
    return not settings.scheduler_name or name != settings.scheduler_name


def _refused_keys(pod: Pod, settings: AdmissionSettings) -> Denied | None:
    exact = settings.reserved
    for key in sorted(pod.metadata.notes):
        if identity.is_reserved(key, exact):
            return Denied(403, f"annotation {key} is reserved: only hami writes it")
    return None


def _refused_quantity(pod: Pod, settings: AdmissionSettings) -> Denied | None:
    error = malformed(pod, settings.vendors)
    return None if error is None else Denied(422, str(error))


def _refused_company(pod: Pod, settings: AdmissionSettings, *, ours: bool) -> Denied | None:
    """What a pod that asks for devices must not have: a privileged container, a node of its own choosing."""
    if not ours:
        return None
    for _, _, container in containers_of(pod):
        if container.security_context is not None and container.security_context.privileged:
            return Denied(403, f"container {container.name} is privileged")
    if settings.scheduler_name and pod.spec.node_name:
        return Denied(403, "pod has node assigned")
    return None


def _change(pod: Pod, place: str, container: Container, vendors: Sequence[Vendor]) -> "_Changed | Denied":
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}
    env: list[EnvVar] = []
    notes: dict[str, str] = {}
    claimed: list[Vendor] = []
    for vendor in vendors:
        changes = admission.changes_of(container, pod, vendor)
        if isinstance(changes, Refused):
            return Denied(500, changes.message)
        limits |= changes.limits
        requests |= changes.requests
        notes |= changes.notes
        env.extend(changes.env)
        if changes.claims:
            claimed.append(vendor)
    return _Changed(
        place=place, container=container, limits=limits, requests=requests, env=tuple(env), notes=notes, claimed=tuple(claimed)
    )


def _changes(pod: Pod, vendors: Sequence[Vendor]) -> "list[_Changed] | Denied":
    found: list[_Changed] = []
    for place, _, container in containers_of(pod):
        changed = _change(pod, place, container, vendors)
        if isinstance(changed, Denied):
            return changed
        found.append(changed)
    return found


def _after(pod: Pod, changed: Sequence[_Changed]) -> Pod:
    """The pod with the limits it will have."""
    inits = len(pod.spec.init_containers or ())
    containers = [patch.with_amounts(each.container, each.limits, each.requests) for each in changed]
    spec = msgspec.structs.replace(pod.spec, init_containers=containers[:inits] or None, containers=containers[inits:])
    return msgspec.structs.replace(pod, spec=spec)


def _with_identity(
    pod: Pod, settings: AdmissionSettings, changed: Sequence[_Changed], request: PodRequest, *, ours: bool
) -> Admitted | Denied:
    operations: list[Operation] = []
    guarded = ours and any(by_reference(asked, settings.vendors) for asked in request.containers)
    for each, asked in zip(changed, request.containers, strict=True):
        env = _identity_env(each, asked, settings.vendors) if guarded else ()
        if isinstance(env, Denied):
            return env
        at = _pointer_of(each.place)
        operations += patch.with_resources(each.container, at, each.limits, each.requests)
        operations += patch.with_env(each.container, at, (*each.env, *env))
    if ours:
        operations += patch.with_label(pod, identity.LABEL, identity.LABEL_VALUE)
        if settings.scheduler_name and pod.spec.scheduler_name != settings.scheduler_name:
            operations.append(patch.add("/spec/schedulerName", settings.scheduler_name))
        runtime = next((v.runtime_class for each in changed for v in each.claimed if v.runtime_class), "")
        if runtime and pod.spec.runtime_class_name is None:
            operations.append(patch.add("/spec/runtimeClassName", runtime))
    notes = {key: value for each in changed for key, value in each.notes.items()}
    operations += patch.with_annotations(pod, notes)
    return Admitted(patch=tuple(operations))


def by_reference(asked: ContainerRequest, vendors: Sequence[Vendor]) -> bool:
    """Does this container learn its devices from environment that refers to annotations?"""
    return any(vendor.identity for each in asked.requests if (vendor := by_word(vendors, each.vendor)) is not None)


def _identity_env(each: _Changed, asked: ContainerRequest, vendors: Sequence[Vendor]) -> tuple[EnvVar, ...] | Denied:
    """References for a container that asks; what is there already and the same stays, anything else of that name is refused."""
    wanted: dict[str, str] = {}
    for request in asked.requests:
        vendor = by_word(vendors, request.vendor)
        if vendor is not None and vendor.identity:
            wanted |= identity.references(asked.name, request.count)
    if not wanted:
        return _no_device_env(each)
    there = set()
    for env in each.container.env or ():
        if not identity.is_identity_env(env.name):
            continue
        if env.name not in wanted or not refers_to(env, wanted[env.name]):
            return Denied(403, f"{each.place}: environment {env.name} is set by hami for containers that ask for devices")
        there.add(env.name)
    return tuple(_reference(name, key) for name, key in wanted.items() if name not in there)


def _no_device_env(each: _Changed) -> tuple[EnvVar, ...] | Denied:
    """A container that asks for nothing beside one that asks: it sees no device, whatever its image or ConfigMaps say.

    One that asks for MIG instances by their own resource is told by the plugin, which a variable of the pod would overrule.
    """
    for env in each.container.env or ():
        if identity.is_identity_env(env.name) and not shows_nothing(env):
            return Denied(403, f"{each.place}: environment {env.name} is not for containers that ask for no device")
    if identity.takes_instances(each.container):
        return ()
    return () if _says_so(each.container, each.env) else (_BLIND,)


def _says_so(container: Container, more: Sequence[EnvVar] = ()) -> bool:
    return any(env.name == identity.VISIBLE_ENV for env in (*(container.env or ()), *more))


def shows_nothing(env: EnvVar) -> bool:
    """Is this variable one of the ways to say 'no device'?"""
    return env.name == identity.VISIBLE_ENV and not env.value_from and (env.value or "") in identity.NO_DEVICES


def debuggers(old: Pod, new: Pod) -> Admitted:
    """Ephemeral containers that come to a pod of ours run in its sandbox and see no device."""
    if (new.metadata.labels or {}).get(identity.LABEL) != identity.LABEL_VALUE:
        return Admitted()
    known = {each.name for each in old.spec.ephemeral_containers or ()}
    operations: list[Operation] = []
    for at, each in enumerate(new.spec.ephemeral_containers or ()):
        if each.name not in known and not _says_so(each):
            operations += patch.with_env(each, f"/spec/ephemeralContainers/{at}", (_BLIND,))
    return Admitted(patch=tuple(operations))


def _reference(name: str, key: str) -> EnvVar:
    return EnvVar(name=name, value_from={"fieldRef": {"fieldPath": identity.field_path(key)}})


def refers_to(env: EnvVar, key: str) -> bool:
    """Is this variable exactly our reference to that annotation?"""
    source = (env.value_from or {}).get("fieldRef")
    return not env.value and isinstance(source, dict) and source.get("fieldPath") == identity.field_path(key)


def _pointer_of(place: str) -> str:
    """`spec.containers[2]` -> `/spec/containers/2`."""
    return "/" + place.replace(".", "/").replace("[", "/").replace("]", "")
