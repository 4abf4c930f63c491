"""op codec: HAMi's annotation texts, read and written back."""

import json
from typing import Any

import msgspec

from hami.domain.errors import InvalidInput
from hami.scheduler.decide.policies import WEIGHTS, BadPolicy, parse_weights
from hami.vendors import annotations, registers
from tests.conformance.outcome import PASSED, Outcome, difference, failed
from tests.conformance.world import Case


def check(case: Case) -> Outcome:
    text, expect = case["input"]["text"], case["expect"]
    try:
        ours = _READ[case["input"]["fn"]](text)
    except InvalidInput as error:
        ours = {"error": str(error)}
    if ("error" in expect) != ("error" in ours):
        return failed(difference("error", ours, expect))
    if "error" in expect:
        return PASSED
    found = [difference(name, ours.get(name), value) for name, value in expect.items() if ours.get(name) != value]
    return failed(*found) if found else PASSED


def _container(text: str) -> dict[str, Any]:
    entries = annotations.decode_devices(text)
    return {"value": [_row(each) for each in entries], "encoded": annotations.encode_devices(entries)}


def _pod(text: str) -> dict[str, Any]:
    containers = annotations.decode_pod(text)
    return {"value": [[_row(each) for each in one] for one in containers], "encoded": annotations.encode_pod(containers)}


def _row(entry: annotations.DeviceEntry) -> list[Any]:
    return [entry.uuid, entry.type, entry.memory, entry.cores]


def _colon(text: str) -> dict[str, Any]:
    return {"value": json.loads(registers.encode_wire(registers.decode_colon(text)))}


def _json(text: str) -> dict[str, Any]:
    devices = registers.decode_register(text)
    encoded = registers.encode_wire(devices)
    return {"value": json.loads(encoded), "remarshalled": encoded, "csv": registers.encode_colon(devices)}


def _pairs(text: str) -> dict[str, Any]:
    found = registers.decode_pair_scores(text)
    if text.strip() == "null":
        return {"value": None}
    return {"value": [{"uuid": uuid, "score": scores} for uuid, scores in found.items()]}


def _mig(text: str) -> dict[str, Any]:
    return {"value": json.loads(msgspec.json.encode(annotations.decode_mig(text)))}


def _weights(text: str) -> dict[str, Any]:
    given = json.loads(text).get(WEIGHTS)
    parsed = parse_weights(given) if given is not None else None
    if isinstance(parsed, BadPolicy):
        return {"error": parsed.message}
    return {"value": {"Slot": parsed.slot, "Core": parsed.core, "Memory": parsed.memory} if parsed else None}


_READ = {
    "container_devices": _container,
    "pod_devices": _pod,
    "node_csv": _colon,
    "node_json": _json,
    "pair_scores": _pairs,
    "mig_allocations": _mig,
    "weights": _weights,
}
