"""A simulated API server with many nodes and pods: `python -m benchmarks.apiserver_process NODES PODS FILE WAITING`.

Writes a kubeconfig to FILE once it listens.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from benchmarks.world import bound_pods, node_name
from hami.sim.apiserver.app import Settings, serving


def node(i: int) -> dict[str, Any]:
    return {"metadata": {"name": node_name(i), "uid": f"uid-{i}"}, "spec": {}, "status": {"capacity": {"cpu": "64"}}}


def pod(uid: str, on: str) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1k"}
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": on, "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def unplaced(uid: str) -> dict[str, Any]:
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


async def main(nodes: int, pods: int, file: Path, waiting: int) -> None:
    async with serving(Settings()) as server:
        server.load("nodes", [node(i) for i in range(nodes)])
        server.load("pods", [pod(each.owner.uid, each.node) for each in bound_pods(pods, nodes)])
        server.load("pods", [unplaced(f"loop-{i}") for i in range(waiting)])
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(server.kubeconfig()))
        fresh.replace(file)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
