"""The operator's own metrics, in the one registry that /metrics serves."""

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco.runtime.build import show_build
from diloco_operator.api_server.errors import ApiError, Call
from diloco_operator.decide.plan import PodDeletion

PREFIX = "diloco_operator"
_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Gauges:
    """Values that are read at every scrape."""

    queue_depth: Callable[[], int]
    jobs: Callable[[], Tally[str]]
    """By phase."""
    watch_ages: Callable[[], Mapping[str, float]]
    """Seconds since each watch was last known to work; infinite: it has not worked yet."""
    lease_held: Callable[[], bool]
    loop_lag_seconds: Callable[[], float]


class Metrics:
    """The operator's counters and histograms."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        show_build(self.registry)
        self.reconcile_seconds = Histogram(
            f"{PREFIX}_reconcile_seconds",
            "Seconds that one reconcile of one job took.",
            buckets=_RECONCILE_BUCKETS,
            registry=self.registry,
        )
        self.reconcile_errors = Counter(
            f"{PREFIX}_reconcile_errors_total",
            "Reconciles that failed and are retried.",
            ["reason"],
            registry=self.registry,
        )
        self.api_requests = Counter(
            f"{PREFIX}_api_requests_total",
            "Requests to the API servers of home and of other clusters, except those of the watch of jobs; code 0: no "
            "answer.",
            ["cluster", "verb", "resource", "code"],
            registry=self.registry,
        )
        self.left_behind = Counter(
            f"{PREFIX}_jobs_left_behind_total",
            "Deleted jobs of which another cluster still has objects, or may have.",
            ["namespace", "cluster"],
            registry=self.registry,
        )
        self.swept_objects = Counter(
            f"{PREFIX}_swept_objects_total",
            "Objects in other clusters that were left by jobs that are gone, and were deleted.",
            ["cluster"],
            registry=self.registry,
        )
        self.deleted_pods = Counter(
            f"{PREFIX}_pods_deleted_total",
            "Pods deleted so that others take their place, or none, by the reason of the event.",
            ["reason"],
            registry=self.registry,
        )
        self.api_seconds = Histogram(
            f"{PREFIX}_api_request_seconds",
            "Seconds until the API server started to answer.",
            ["cluster", "verb"],
            registry=self.registry,
        )

    def answered(self, cluster: str, call: Call, code: int, seconds: float) -> None:
        """Count a finished request to the API server of a cluster: home or other."""
        self.api_requests.labels(cluster, call.verb, call.resource, str(code)).inc()
        self.api_seconds.labels(cluster, call.verb).observe(seconds)

    def left(self, namespace: str, objects: Mapping[str, int]) -> None:
        """Count a deleted job that left objects in these clusters."""
        for cluster in objects:
            self.left_behind.labels(namespace, cluster).inc()

    def swept(self, cluster: str) -> None:
        """Count an object that was deleted because its job is gone."""
        self.swept_objects.labels(cluster).inc()

    def pods_deleted(self, deleted: Collection[PodDeletion]) -> None:
        """Count pods that were deleted for a reason of their own."""
        for one in deleted:
            if one.reason is not None:
                self.deleted_pods.labels(one.reason.value).inc()

    def failed(self, error: Exception) -> None:
        """Count a failed reconcile."""
        self.reconcile_errors.labels(error.reason if isinstance(error, ApiError) else "Internal").inc()

    def show(self, gauges: Gauges) -> None:
        """Serve these values too."""
        self.registry.register(_Shown(gauges))


class _Shown(Collector):
    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            f"{PREFIX}_queue_depth", "Jobs that wait for a free worker.", value=self._gauges.queue_depth()
        )
        jobs = GaugeMetricFamily(f"{PREFIX}_jobs", "Jobs by phase; New: no status yet.", labels=["phase"])
        for phase, count in sorted(self._gauges.jobs().items()):
            jobs.add_metric([phase], count)
        yield jobs
        ages = GaugeMetricFamily(
            f"{PREFIX}_watch_age_seconds", "Seconds since a watch was last known to be alive.", labels=["watch"]
        )
        for watch, seconds in sorted(self._gauges.watch_ages().items()):
            ages.add_metric([watch], seconds)
        yield ages
        yield GaugeMetricFamily(
            f"{PREFIX}_lease_held",
            "1 while this process holds the Lease.",
            value=int(self._gauges.lease_held()),
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_loop_lag_seconds",
            "How late the event loop ran its latest heartbeat, in seconds.",
            value=self._gauges.loop_lag_seconds(),
        )
