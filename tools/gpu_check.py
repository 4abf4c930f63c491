"""What the agent would find on this machine's NVIDIA cards, as one JSON document; needs Python and nvidia-ml-py only.

Reads, and registers for events; changes nothing. Exits 0 also where there is no driver (`{"nvml": "absent"}`), 1 where the
library and nvidia-smi disagree on what the machine has.

    python tools/gpu_check.py [--wait SECONDS]    how long to listen for events (default 1)
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

FIELDS = {"recovery_action": 230, "remapped_pending": 144, "remapped_failure": 145, "retired_pending": 31}
EVENTS = {
    "single_bit_ecc": 0x1,
    "double_bit_ecc": 0x2,
    "xid": 0x8,
    "mig_config": 0x100,
    "sbe_storm": 0x200,
    "dram_retirement": 0x400,
    "dram_retirement_failure": 0x800,
    "poison": 0x1000,
    "fatal_poison": 0x2000,
    "unavailable": 0x4000,
    "recovery_action": 0x8000,
}
ASKED = EVENTS["xid"] | EVENTS["double_bit_ecc"] | sum(EVENTS[name] for name in list(EVENTS)[6:])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait", type=float, default=1.0, metavar="SECONDS")
    chosen = parser.parse_args(arguments)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(json.dumps({"nvml": "absent", "why": str(error)}))
        return 0
    try:
        found = checked(chosen.wait)
    finally:
        pynvml.nvmlShutdown()
    print(json.dumps(found, indent=2))
    return 1 if found["differences"] else 0


def checked(wait_s: float) -> dict[str, Any]:
    began = time.monotonic()
    count = pynvml.nvmlDeviceGetCount()
    cards = [card_of(index) for index in range(count)]
    smi = from_smi()
    return {
        "nvml": "present",
        "driver": asked(pynvml.nvmlSystemGetDriverVersion),
        "library": asked(pynvml.nvmlSystemGetNVMLVersion),
        "cuda": asked(pynvml.nvmlSystemGetCudaDriverVersion),
        "cards": cards,
        "pairs": pairs(count),
        "events": listened(count, wait_s),
        "nvidia_smi": "absent" if smi is None else smi,
        "differences": [] if smi is None else differences(cards, smi),
        "took_s": round(time.monotonic() - began, 3),
    }


def asked(call: Callable[..., Any], *given: Any) -> Any:
    """The answer, or the error in words: one fact that cannot be read hides no other."""
    try:
        answer = call(*given)
    except pynvml.NVMLError as error:
        return {"error": str(error), "code": error.value}
    return answer.decode() if isinstance(answer, bytes) else answer


def card_of(index: int) -> dict[str, Any]:
    handle = asked(pynvml.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, dict):
        return {"index": index, **handle}
    memory, pci = asked(pynvml.nvmlDeviceGetMemoryInfo, handle), asked(pynvml.nvmlDeviceGetPciInfo, handle)
    return {
        "index": index,
        "uuid": asked(pynvml.nvmlDeviceGetUUID, handle),
        "name": asked(pynvml.nvmlDeviceGetName, handle),
        "minor": asked(pynvml.nvmlDeviceGetMinorNumber, handle),
        "memory_mib": memory if isinstance(memory, dict) else memory.total >> 20,
        "pci": pci if isinstance(pci, dict) else asked(lambda: pci.busId),
        "numa": asked(pynvml.nvmlDeviceGetNumaNodeId, handle),
        "compute": asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "mig": mig_of(handle),
        "memory_health": memory_health(handle),
        "fields": fields_of(handle),
    }


def mig_of(handle: Any) -> Any:
    mode = asked(pynvml.nvmlDeviceGetMigMode, handle)
    if isinstance(mode, dict):
        return mode
    found: dict[str, Any] = {"current": mode[0], "pending": mode[1]}
    if mode[0]:
        most = asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
        handles = (
            asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at) for at in range(most if isinstance(most, int) else 0)
        )
        found["instances"] = [
            {
                "uuid": asked(pynvml.nvmlDeviceGetUUID, each),
                "gpu_instance": asked(pynvml.nvmlDeviceGetGpuInstanceId, each),
                "compute_instance": asked(pynvml.nvmlDeviceGetComputeInstanceId, each),
            }
            for each in handles
            if not isinstance(each, dict)
        ]
    return found


def memory_health(handle: Any) -> dict[str, Any]:
    remapped = asked(pynvml.nvmlDeviceGetRemappedRows, handle)
    names = ("corrected", "uncorrected", "pending", "failure")
    return {
        "ecc_mode": asked(pynvml.nvmlDeviceGetEccMode, handle),
        "uncorrected_volatile": asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
        "uncorrected_aggregate": asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 1),
        "remapped_rows": remapped if isinstance(remapped, dict) else dict(zip(names, remapped, strict=True)),
        "retired_pending": asked(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle),
        "sram_threshold": asked(sram_threshold, handle),
    }


def sram_threshold(handle: Any) -> bool:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = pynvml.nvmlEccSramErrorStatus_v1
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
    return bool(status.bThresholdExceeded)


def fields_of(handle: Any) -> Any:
    values = asked(pynvml.nvmlDeviceGetFieldValues, handle, list(FIELDS.values()))
    if isinstance(values, dict):
        return values
    return {
        name: each.value.uiVal if each.nvmlReturn == 0 else {"code": each.nvmlReturn}
        for name, each in zip(FIELDS, values, strict=True)
    }


def pairs(count: int) -> list[dict[str, Any]]:
    handles = [asked(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [
        {"pair": [one, other], "ancestor": asked(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other])}
        for one in range(count)
        for other in range(one + 1, count)
        if not isinstance(handles[one], dict) and not isinstance(handles[other], dict)
    ]


def listened(count: int, wait_s: float) -> dict[str, Any]:
    """What each card can report, what it accepted, and whatever arrived while listening."""
    events = asked(pynvml.nvmlEventSetCreate)
    if isinstance(events, dict):
        return events
    cards = []
    for index in range(count):
        handle = asked(pynvml.nvmlDeviceGetHandleByIndex, index)
        supported = handle if isinstance(handle, dict) else asked(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        if isinstance(supported, dict):
            cards.append({"index": index, "supported": supported})
            continue
        answer = asked(pynvml.nvmlDeviceRegisterEvents, handle, supported & ASKED, events)
        names = [name for name, bit in EVENTS.items() if supported & bit]
        cards.append({"index": index, "supported": names, "registered": "yes" if answer is None or answer == 0 else answer})
    seen = heard(events, wait_s)
    asked(pynvml.nvmlEventSetFree, events)
    return {"cards": cards, "heard": seen}


def heard(events: Any, wait_s: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    until = time.monotonic() + wait_s
    while (left_ms := int((until - time.monotonic()) * 1000)) > 0:
        event = asked(pynvml.nvmlEventSetWait_v2, events, left_ms)
        if isinstance(event, dict):
            if event["code"] != pynvml.NVML_ERROR_TIMEOUT:
                return [*found, event]
            continue
        uuid = asked(pynvml.nvmlDeviceGetUUID, event.device)
        found.append({"uuid": uuid, "type": int(event.eventType), "data": int(event.eventData)})
    return found


def from_smi() -> list[dict[str, str]] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    columns = ("index", "uuid", "name", "memory.total", "pci.bus_id", "mig.mode.current")
    command = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.TimeoutExpired) as error:
        return [{"error": str(error)}]
    if done.returncode:
        return [{"error": (done.stdout + done.stderr).strip()[:500]}]
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [dict(zip(columns, row, strict=False)) for row in rows if row]


def differences(cards: list[dict[str, Any]], smi: list[dict[str, str]]) -> list[str]:
    if any("error" in row for row in smi):
        return ["nvidia-smi failed"]
    ours = {str(card["index"]): card for card in cards}
    found = [] if len(ours) == len(smi) else [f"the library has {len(ours)} cards, nvidia-smi {len(smi)}"]
    for row in smi:
        card = ours.get(row["index"], {})
        mine = {"uuid": card.get("uuid"), "name": card.get("name"), "memory.total": str(card.get("memory_mib"))}
        found += [f"card {row['index']}: {key} is {mine[key]!r} and {row[key]!r}" for key in mine if mine[key] != row[key]]
    return found


if __name__ == "__main__":
    sys.exit(main())
