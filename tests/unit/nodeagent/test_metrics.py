"""What the agent's metrics say, and that they say nothing of what is not known."""

from typing import Any

import anyio
from prometheus_client import generate_latest

from hami.domain.device import Health
from hami.domain.pod import Node, ObjectMeta
from hami.events.outbox import OutboxState
from hami.kube.errors import ApiError
from hami.nodeagent.identity import learn_uid
from hami.nodeagent.metrics import Metrics, Seen


def scraped(seen: Seen) -> list[str]:
    metrics = Metrics(lambda: seen)
    metrics.before()
    return generate_latest(metrics.registry).decode().splitlines()


def test_cards_faults_and_the_outbox_have_their_figures() -> None:
    health = {"GPU-a": Health.HEALTHY, "GPU-b": Health.UNHEALTHY, "GPU-c": Health.UNKNOWN, "GPU-d": Health.SUSPECT}
    outbox = OutboxState(epoch=7, backlog=3, dropped=2, delivered=5, stuck_for_s=1.5, waiting=4)
    lines = scraped(Seen(outbox=outbox, health=health, faults={("GPU-b", "xid", 79): 3}, handshake_age_s=12.0, displaced=1))
    for wanted in (
        'hami_agent_device_healthy{device="GPU-a"} 1.0',
        'hami_agent_device_healthy{device="GPU-b"} 0.0',
        'hami_agent_device_healthy{device="GPU-d"} 0.0',
        'hami_agent_devices{health="unknown"} 1.0',
        'hami_agent_faults_total{code="79",device="GPU-b",kind="xid"} 3.0',
        "hami_agent_outbox_backlog 3.0",
        "hami_agent_outbox_waiting 4.0",
        "hami_agent_handshake_age_seconds 12.0",
        "hami_agent_displaced_total 1.0",
    ):
        assert wanted in lines
    assert not any(line.startswith('hami_agent_device_healthy{device="GPU-c"}') for line in lines)


def test_what_has_not_happened_yet_has_no_sample() -> None:
    assert not any(line.startswith(("hami_agent_handshake_age", "hami_agent_faults")) for line in scraped(Seen()))


_REFUSED = ApiError(403, "Forbidden", "nodes")


class LateApi:
    """Implements NodeObject: refuses twice, does not know the node once, then has it."""

    def __init__(self) -> None:
        self.answers: list[Any] = [_REFUSED, _REFUSED, None, Node(metadata=ObjectMeta(uid="u-1"))]

    async def get_node(self, name: str) -> Node | None:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        assert answer is None or isinstance(answer, Node)
        return answer

    async def patch_node(self, name: str, patch: dict[str, Any]) -> Node:
        raise AssertionError(f"{name} is not to be written: {patch}")


async def test_the_uid_of_the_node_is_asked_for_until_it_is_there() -> None:
    told: list[str] = []
    with anyio.fail_after(10):
        await learn_uid("n1", LateApi(), told.append, most_s=0.01)
    assert told == ["u-1"]
