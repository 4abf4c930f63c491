"""What the agent says of itself to Prometheus: its cards, their faults, and whether its events get away.

What is not known has no sample: a card whose health is unknown is neither 0 nor 1, and the age of a handshake that never was is
absent.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.domain.device import Health
from hami.events.outbox import OutboxState


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One agent at one moment. `faults` counts reports by (card, kind, XID); the ages are None where nothing happened yet."""

    outbox: OutboxState = OutboxState(epoch=0, backlog=0, dropped=0, delivered=0, stuck_for_s=0.0)
    health: Mapping[str, Health] = msgspec.field(default_factory=dict)
    faults: Mapping[tuple[str, str, int], int] = msgspec.field(default_factory=dict)
    handshake_age_s: float | None = None
    registered: bool = False
    registrations: int = 0
    displaced: int = 0


class Metrics:
    """One registry for each agent. `before` runs on the event loop at each scrape; the collector reads what it left."""

    def __init__(self, look: Callable[[], Seen] = Seen) -> None:
        self.registry = CollectorRegistry()
        self._look, self._collector = look, _Collector()
        self.registry.register(self._collector)

    def before(self) -> None:
        self._collector.seen = self._look()


class _Collector(Collector):
    def __init__(self) -> None:
        self.seen = Seen()

    def collect(self) -> Iterator[Metric]:
        yield from _outbox(self.seen.outbox)
        yield from _cards(self.seen.health)
        yield from _kubelet(self.seen)
        faults = CounterMetricFamily(
            "hami_agent_faults",
            "Faults reported by the device library, every report counted; code is the XID, else 0.",
            labels=("device", "kind", "code"),
        )
        for (device, kind, code), count in sorted(self.seen.faults.items()):
            faults.add_metric([device, kind, str(code)], count)
        yield faults
        told = "Since the control plane's last question was answered; absent before the first."
        yield GaugeMetricFamily("hami_agent_handshake_age_seconds", told, value=self.seen.handshake_age_s)


def _outbox(outbox: OutboxState) -> Iterator[Metric]:
    stuck = "Since the first failed delivery after the last success."
    dropped = "Events left out because newer ones say the same."
    yield GaugeMetricFamily("hami_agent_epoch", "The outbox's present life.", value=outbox.epoch)
    yield GaugeMetricFamily("hami_agent_outbox_backlog", "Events not yet numbered for the inbox.", value=outbox.backlog)
    yield GaugeMetricFamily("hami_agent_outbox_waiting", "Events numbered and not yet in the inbox.", value=outbox.waiting)
    yield GaugeMetricFamily("hami_agent_outbox_stuck_seconds", stuck, value=outbox.stuck_for_s)
    yield CounterMetricFamily("hami_agent_outbox_delivered", "Events that reached the inbox.", value=outbox.delivered)
    yield CounterMetricFamily("hami_agent_outbox_dropped", dropped, value=outbox.dropped)


def _cards(health: Mapping[str, Health]) -> Iterator[Metric]:
    devices = GaugeMetricFamily("hami_agent_devices", "Cards offered to the kubelet, by health.", labels=("health",))
    counts = Counter(health.values())
    for each in Health:
        devices.add_metric([each.value], counts[each])
    yield devices
    says = "1 = healthy, 0 = suspect or unhealthy; a card whose health is unknown has no sample."
    one = GaugeMetricFamily("hami_agent_device_healthy", says, labels=("device",))
    for uuid, now in health.items():
        if now is not Health.UNKNOWN:
            one.add_metric([uuid], now is Health.HEALTHY)
    yield one


def _kubelet(seen: Seen) -> Iterator[Metric]:
    displaced = "How often another device plugin was found to have registered our resource."
    yield GaugeMetricFamily("hami_agent_kubelet_registered", "Whether the kubelet has accepted us.", value=seen.registered)
    yield CounterMetricFamily("hami_agent_kubelet_registrations", "Accepted registrations.", value=seen.registrations)
    yield CounterMetricFamily("hami_agent_displaced", displaced, value=seen.displaced)
