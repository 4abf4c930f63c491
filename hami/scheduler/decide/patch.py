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


def with_annotations(pod: Pod, notes: Mapping[str, str]) -> list[Operation]:
    if not notes:
        return []
    if pod.metadata.annotations is None:
        return [add("/metadata/annotations", dict(notes))]
    return [add(pointer("metadata", "annotations", key), value) for key, value in notes.items()]


def with_resources(
    container: Container, at: str, limits: Mapping[str, Quantity], requests: Mapping[str, Quantity]
) -> list[Operation]:
    wanted = {side: dict(amounts) for side, amounts in (("limits", limits), ("requests", requests)) if amounts}
    if container.resources is None:
        return [add(f"{at}/resources", wanted)] if wanted else []
    there = {"limits": container.resources.limits, "requests": container.resources.requests}
    operations: list[Operation] = []
    for side, amounts in wanted.items():
        if there[side] is None:
            operations.append(add(f"{at}/resources/{side}", amounts))
        else:
            operations += [add(at + pointer("resources", side, name), value) for name, value in amounts.items()]
    return operations


def with_amounts(container: Container, limits: Mapping[str, Quantity], requests: Mapping[str, Quantity]) -> Container:
    """The container as it will be with these limits and requests."""
    if not limits and not requests:
        return container
    before = container.resources or Resources()
    after = Resources(limits={**(before.limits or {}), **limits}, requests={**(before.requests or {}), **requests})
    return msgspec.structs.replace(container, resources=after)
