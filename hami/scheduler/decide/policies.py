"""How a pod wants to be placed: node policy, device policy, scoring weights. Flags give the defaults, annotations override."""

import json
from collections.abc import Mapping
from typing import Final

import msgspec

NODE_POLICY: Final = "hami.io/node-scheduler-policy"
DEVICE_POLICY: Final = "hami.io/gpu-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"

_SORT_KEYS: Final = ("binpack", "spread", "numa")


class Weights(msgspec.Struct, frozen=True):
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class SchedulingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`node`: `spread` takes the emptiest node, anything else the fullest. `device`: one word or a comma list (docs)."""

    node: str = "binpack"
    device: str = "spread"
    weights: Weights = Weights()

    @property
    def spreads_nodes(self) -> bool:
        return self.node == "spread"

    @property
    def mutex(self) -> bool:
        return "mutex" in _tokens(self.device)

    @property
    def topology_aware(self) -> bool:
        return "topology-aware" in _tokens(self.device)

    def sort_keys(self, *, numa_bind: bool) -> tuple[str, ...]:
        """The order of devices as a chain of keys, each sorted upwards; the walk starts at the end.

        Keys: `used-`, `numa`, `numa-`, `score` (binpack), `score-` (spread), `index`; a trailing `-` sorts downwards.
        """
        if self.device == "mutex":
            return ("used-", "numa")
        if "," in self.device or self.device == "numa":
            return self._chain(numa_bind=numa_bind)
        if numa_bind:
            return ("numa-", "score") if self.device == "binpack" else ("numa", "score-")
        return ("score" if self.device == "binpack" else "score-", "numa")

    def _chain(self, *, numa_bind: bool) -> tuple[str, ...]:
        words = list(dict.fromkeys(word for word in _tokens(self.device) if word in _SORT_KEYS)) or ["spread"]
        if numa_bind and words[0] != "numa":
            words = ["numa", *(word for word in words if word != "numa")]
        names = {"binpack": "score", "spread": "score-", "numa": "numa"}
        return (*(names[word] for word in words), "index")


class BadPolicy(msgspec.Struct, frozen=True):
    """The pod's annotation cannot be used; `message` is what its user sees."""

    message: str


def policy_of(annotations: Mapping[str, str], defaults: SchedulingPolicy) -> SchedulingPolicy | BadPolicy:
    weights = defaults.weights
    text = annotations.get(WEIGHTS)
    if text is not None:
        parsed = parse_weights(text)
        if isinstance(parsed, BadPolicy):
            return parsed
        weights = parsed
    return SchedulingPolicy(
        node=annotations.get(NODE_POLICY, defaults.node),
        device=annotations.get(DEVICE_POLICY, defaults.device),
        weights=weights,
    )


def parse_weights(text: str) -> Weights | BadPolicy:
    """`slot=1,core=1,memory=3`: all three, any order, whole numbers from 0, not all 0."""
    entries = text.split(",")
    if len(entries) != 3:
        return _bad(text, "expected slot, core, and memory weights")
    found: dict[str, int] = {}
    for entry in entries:
        name, equals, written = entry.partition("=")
        name, written = name.strip(), written.strip()
        if not equals:
            return _bad(text, "expected key=value entries")
        if name not in {"slot", "core", "memory"}:
            return _bad(text, f'unknown weight "{name}"')
        if name in found:
            return _bad(text, f'duplicate "{name}" weight')
        digits = written[1:] if written[:1] in {"+", "-"} else written
        if not (digits.isascii() and digits.isdigit()) or not -(2**63) <= int(written) < 2**63:
            return _bad(text, f'"{name}" weight must be an integer')
        if int(written) < 0:
            return _bad(text, f'"{name}" weight must not be negative')
        found[name] = int(written)
    if not any(found.values()):
        return _bad(text, "at least one weight must be positive")
    return Weights(found["slot"], found["core"], found["memory"])


def _tokens(policy: str) -> list[str]:
    return [word.strip() for word in policy.split(",")]


def _bad(text: str, why: str) -> BadPolicy:
    return BadPolicy(f"invalid {WEIGHTS} annotation {json.dumps(text, ensure_ascii=False)}: {why}")
