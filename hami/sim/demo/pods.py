"""The pods of the demo, and what their containers must come to see."""

from collections.abc import Mapping
from typing import Any

from hami.domain.allocation import Allocation, ContainerShares
from hami.sim.kubelet.runtime import ContainerView
from hami.vendors import identity


def container(name: str = "main", **limits: int) -> dict[str, Any]:
    """Limits by the last part of the resource's name: `gpu=1, gpumem=8000`."""
    named = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in limits.items()}
    return {"name": name, "image": "nvidia/cuda:12.8.0-base", "resources": {"limits": named}}


def pod(name: str, *containers: Mapping[str, Any], init: tuple[Mapping[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": list(containers), "restartPolicy": "Never", **more.get("spec", {})}
    if init:
        spec["initContainers"] = list(init)
    return {"metadata": {"name": name, "namespace": "default", "labels": more.get("labels", {})}, "spec": spec}


SHAPES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8000 MiB and 30 % of one card", pod("infer", container(gpu=1, gpumem=8000, gpucores=30))),
    ("half the memory of one card", pod("half", container(gpu=1, gpumem_percentage=50))),
    ("10000 MiB on each of two cards", pod("pair", container(gpu=2, gpumem=10000, gpucores=20))),
    ("a whole card", pod("whole", container(gpu=1))),
    (
        "an init container that needs more than the app",
        pod("staged", container("serve", gpu=1, gpumem=4000), init=(container("fetch", gpu=1, gpumem=9000),)),
    ),
)


def bypassing(node: str) -> dict[str, Any]:
    """Somebody who asks for a card and takes care that hami never sees the pod."""
    return pod("bypass", container(gpu=1), labels={"hami.io/webhook": "ignore"}, spec={"nodeName": node})


def differences(view: ContainerView | None, reserved: ContainerShares) -> str:
    """What is wrong with what a container sees; empty = it sees exactly its reservation."""
    if view is None:
        return "it did not start"
    if view.error:
        return view.error
    wanted = tuple(share.uuid for share in reserved.shares)
    if view.visible_devices != wanted:
        return f"sees {view.visible_devices}, reserved {wanted}"
    for number, share in enumerate(reserved.shares):
        limit = view.env.get(f"{identity.MEMORY_ENV}_{number}")
        if limit != f"{share.memory}m":
            return f"memory limit {number} is {limit}, reserved {share.memory}m"
    cores = view.env.get(identity.CORES_ENV)
    if reserved.shares and cores != str(reserved.shares[0].cores):
        return f"core limit is {cores}, reserved {reserved.shares[0].cores}"
    return ""


def seen_in_words(view: ContainerView | None) -> str:
    if view is None:
        return "not started"
    cards = ", ".join(view.visible_devices) or "no device"
    limits = [view.env[key] for key in sorted(view.env) if key.startswith(f"{identity.MEMORY_ENV}_") and view.env[key]]
    cores = view.env.get(identity.CORES_ENV)
    return cards + (f"; memory {' and '.join(limits)}" if limits else "") + (f"; cores {cores} %" if cores else "")


def rows_of(allocation: Allocation) -> str:
    """Where an allocation lies, in a word."""
    held = {share.uuid for each in allocation.reservation.containers for share in each.shares}
    return f"{allocation.reservation.node}: {', '.join(sorted(held))}"
