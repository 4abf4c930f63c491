"""What the loops keep of a pod that third-party plugins serve."""

from typing import Any

import msgspec
import pytest

from hami.domain.pod import Pod
from hami.scheduler.podfacts import Relevance, admitted
from hami.vendors import identity
from tests.support.cores import VENDORS
from tests.support.objects import pod as pod_object

RELEVANCE = Relevance(VENDORS)


def pod(status: dict[str, Any] | None = None, notes: dict[str, str] | None = None) -> Pod:
    made = pod_object("p1", namespace="default", annotations=notes or {})
    return msgspec.convert(made | ({"status": status} if status is not None else {}), Pod)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, False),
        ({"phase": "Pending"}, False),
        ({"phase": "Pending", "containerStatuses": [{"name": "main", "ready": False}]}, True),
        ({"phase": "Pending", "initContainerStatuses": [{"name": "init", "ready": False}]}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Failed", "containerStatuses": [{"name": "main"}]}, False),
    ],
)
def test_a_kubelet_that_speaks_of_containers_has_given_devices_out(status: dict[str, Any] | None, expected: bool) -> None:
    assert admitted(pod(status)) is expected


@pytest.mark.parametrize(
    ("phase", "text", "waiting"),
    [
        ("allocating", ";a,DCU,1,1:;", (1,)),
        ("allocating", "a,DCU,1,1:;b,DCU,1,1:;", (0, 1)),
        ("allocating", ";;", ()),
        ("allocating", None, None),
        ("success", "a,DCU,1,1:;", None),
        ("", "a,DCU,1,1:;", None),
    ],
)
def test_which_containers_a_plugin_has_yet_to_serve(phase: str, text: str | None, waiting: tuple[int, ...] | None) -> None:
    notes = {identity.BIND_PHASE: phase}
    if text is not None:
        notes["hami.io/dcu-devices-to-allocate"] = text
    facts = RELEVANCE.facts(pod(notes=notes))
    assert (facts.bind_phase, facts.waiting) == (phase, waiting)


def test_a_long_phase_is_cut() -> None:
    assert len(RELEVANCE.facts(pod(notes={identity.BIND_PHASE: "x" * 1000})).bind_phase) < 100
