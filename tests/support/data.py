"""Recorded data by name, unpacked where it is packed."""

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"


def load_json(name: str) -> Any:
    """`name` without the .gz that large files carry."""
    path = DATA / name
    if path.exists():
        return json.loads(path.read_text())
    return json.loads(gzip.decompress((DATA / f"{name}.gz").read_bytes()))


def kubelet_capture(number: int) -> Any:
    """The recording `wire/kubelet-NN-*.json`."""
    [path] = (DATA / "wire").glob(f"kubelet-{number:02d}-*")
    return load_json(f"wire/{path.name.removesuffix('.gz')}")
