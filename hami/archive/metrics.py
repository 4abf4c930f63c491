"""What the archive measures of itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from hami.events.archive.manifest import Manifest


class Metrics:
    """One registry for each process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.active = Gauge("hami_archive_active", "1 on the replica that seals and trims.", registry=registry)
        self.archived = Gauge("hami_archive_archived_g", "Last event g that is sealed.", registry=registry)
        self.lag = Gauge("hami_archive_lag_events", "Events of the log that are not sealed yet.", registry=registry)
        self.trimmed = Gauge("hami_archive_trimmed_g", "Last event g that the log no longer holds.", registry=registry)
        self.newest = Gauge(
            "hami_archive_last_segment_timestamp_seconds",
            "When the last event of the newest segment was recorded.",
            registry=registry,
        )
        self.segments = Counter("hami_archive_segments", "Segments sealed by this process.", registry=registry)
        self.forgotten = Counter("hami_archive_forgotten_pods", "Pods whose version was forgotten.", registry=registry)
        self.failures = Counter("hami_archive_failures", "Rounds that failed, by kind.", ["why"], registry=registry)
        self._pin = Gauge(
            "hami_archive_pinned", "1 for what keeps the log from being trimmed further.", ["by"], registry=registry
        )

    def reached(self, manifest: Manifest) -> None:
        """The newest segment there is, whoever sealed it."""
        self.archived.set(manifest.last.g)
        self.newest.set(manifest.last.recorded_ms / 1000)

    def pinned(self, what: str) -> None:
        self._pin.clear()
        self._pin.labels(what).set(1)
