"""What the agent says of itself to Prometheus: whether its events get away, and what it offers to the kubelet."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami.events.outbox import OutboxState
from hami.nodeagent.board import Offer


class Metrics:
    """One registry for each agent. `freeze` runs on the event loop at each scrape; the collector reads what it left."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._collector = _Collector()
        self.registry.register(self._collector)

    def freeze(self, outbox: OutboxState, offers: tuple[Offer, ...]) -> None:
        self._collector.outbox, self._collector.offers = outbox, offers

    def before(self, outbox: Callable[[], OutboxState], offers: Callable[[], tuple[Offer, ...]]) -> Callable[[], None]:
        """What the metrics route calls before each scrape."""
        return lambda: self.freeze(outbox(), offers())


class _Collector(Collector):
    def __init__(self) -> None:
        self.outbox = OutboxState(epoch=0, backlog=0, dropped=0, delivered=0, stuck_for_s=0.0)
        self.offers: tuple[Offer, ...] = ()

    def collect(self) -> Iterator[Metric]:
        outbox = self.outbox
        stuck = "Since the first failed delivery after the last success."
        dropped = "Events left out because newer ones say the same."
        yield GaugeMetricFamily("hami_agent_epoch", "The outbox's present life.", value=outbox.epoch)
        yield GaugeMetricFamily("hami_agent_outbox_backlog", "Events not yet numbered for the inbox.", value=outbox.backlog)
        yield GaugeMetricFamily("hami_agent_outbox_stuck_seconds", stuck, value=outbox.stuck_for_s)
        yield CounterMetricFamily("hami_agent_outbox_delivered", "Events that reached the inbox.", value=outbox.delivered)
        yield CounterMetricFamily("hami_agent_outbox_dropped", dropped, value=outbox.dropped)
        devices = GaugeMetricFamily("hami_agent_devices", "Cards offered to the kubelet, by health.", labels=("health",))
        healthy = sum(offer.healthy for offer in self.offers)
        devices.add_metric(["healthy"], healthy)
        devices.add_metric(["unhealthy"], len(self.offers) - healthy)
        yield devices
