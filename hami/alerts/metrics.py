"""What `hami alerts` says of itself to Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class Metrics:
    """One registry for each process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.sent = Counter("hami_alerts_sent", "Notices that a sink took.", ["alert", "sink"], registry=registry)
        self.failures = Counter(
            "hami_alerts_failures", "Tries that a sink did not take (why: away or refused).", ["sink", "why"], registry=registry
        )
        self.dead = Counter(
            "hami_alerts_dead_letters", "Notices given up after a sink's refusals.", ["sink"], registry=registry
        )
        self.waiting = Gauge("hami_alerts_waiting", "Notices that a sink has still to take.", ["sink"], registry=registry)
        self.active = Gauge("hami_alerts_active", "1 while this replica sends, 0 while it stands by.", registry=registry)
        self.lag = Gauge("hami_alerts_lag_events", "Events of the log not looked at yet, while active.", registry=registry)
        self.firing = Gauge("hami_alerts_firing", "Conditions that last now, while active.", registry=registry)
        self.restarts = Counter(
            "hami_alerts_rereads", "Times that the log was read again from a checkpoint.", registry=registry
        )
