"""Small Kubernetes objects for tests."""

from typing import Any

Obj = dict[str, Any]


def pod(
    name: str, *, namespace: str = "", labels: dict[str, str] | None = None, limits: dict[str, Any] | None = None, **meta: Any
) -> Obj:
    """One container that asks for one GPU with 1000 MiB unless told otherwise."""
    metadata: Obj = {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        **({"labels": labels} if labels else {}),
        **meta,
    }
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"} if limits is None else limits
    container = {"name": "main", "image": "registry.local/show:1", "resources": {"limits": asked}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def node(name: str, **status: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpu": "on"}},
        "spec": {},
        "status": status,
    }
