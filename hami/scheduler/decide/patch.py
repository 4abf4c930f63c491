"""JSON Patch (RFC 6902) for pods. Parents are made where the pod has none: a patch that does not apply fails the request."""

from collections.abc import Mapping, Sequence

import msgspec

from hami.domain.pod import Container, EnvVar, Pod, Quantity, Resources

Operation = dict[str, object]


def pointer(*parts: str | int) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def with_label(pod: Pod, key: str, value: str) -> list[Operation]:
    labels = pod.metadata.labels
    if labels is None:
        return [add("/metadata/labels", {key: value})]
    return [] if labels.get(key) == value else [add(pointer("metadata", "labels", key), value)]


def with_env(container: Container, at: str, entries: Sequence[EnvVar]) -> list[Operation]:
    values = [msgspec.to_builtins(each) for each in entries]
    plain = [{key: value for key, value in each.items() if value is not None} for each in values]
    if not plain:
        return []
    if container.env is None:
        return [add(f"{at}/env", plain)]
    return [add(f"{at}/env/-", each) for each in plain]


def with_limits(container: Container, at: str, limits: Mapping[str, Quantity]) -> list[Operation]:
    if not limits:
        return []
    resources = container.resources or None
    if resources is None:
        return [add(f"{at}/resources", {"limits": dict(limits)})]
    if resources.limits is None:
        return [add(f"{at}/resources/limits", dict(limits))]
    return [add(at + pointer("resources", "limits", name), value) for name, value in limits.items()]


def limited(container: Container, limits: Mapping[str, Quantity]) -> Container:
    """The container as it will be with these limits."""
    if not limits:
        return container
    before = container.resources or Resources()
    after = msgspec.structs.replace(before, limits={**(before.limits or {}), **limits})
    return msgspec.structs.replace(container, resources=after)
