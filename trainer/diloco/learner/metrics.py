"""A learner's HTTP pages: /metrics for Prometheus, /healthz, /readyz.

Values are read at the time of the request from what the threads record anyway, so they cost the inner loop nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.transfers import TransferCounts
from diloco.runtime.build import show_build
from diloco.runtime.http import Response, Route
from diloco.wire.messages import StepReport

_PREFIX = "diloco_learner_"


@dataclass(frozen=True)
class LearnerFigures:
    """The functions that /metrics reads a learner's values from. Any thread may call any of them."""

    spent: Callable[[], TimeSpent]
    news: Callable[[], StepReport | None]
    staleness_steps: Callable[[], int]
    sessions: Callable[[], int]
    """Number of times the syncer has accepted it."""
    joined: Callable[[], bool]
    over: Callable[[], bool]
    """The job is over and the process keeps running."""
    counts: TransferCounts
    batch_size: int
    processes: int = 1
    tokens_per_step: int = 0
    flops_of_token: float = 0.0
    """Of the forward and the backward pass; 0: not known, as with a task."""
    peak_flops: float | None = None
    """A second, of the device in the job's precision; None: not known."""


def figure_pages(figures: LearnerFigures) -> dict[str, Route]:
    """The pages by path."""
    registry = registry_of(figures)
    return {
        "/metrics": lambda: Response(generate_latest(registry), CONTENT_TYPE_LATEST),
        "/healthz": lambda: Response.text("ok\n"),
        "/readyz": lambda: _readiness(figures),
    }


def registry_of(figures: LearnerFigures) -> CollectorRegistry:
    """The registry that /metrics serves."""
    registry = CollectorRegistry()
    show_build(registry)
    registry.register(_LearnerCollector(figures))
    return registry


def _readiness(figures: LearnerFigures) -> Response:
    if figures.over():
        return Response.text("the job is over\n")
    if not figures.joined():
        return Response.text("no session with the syncer\n", HTTPStatus.SERVICE_UNAVAILABLE)
    if figures.news() is None:
        return Response.text("no step yet\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return Response.text("training\n")


class _LearnerCollector(Collector):
    def __init__(self, figures: LearnerFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        figures, counts = self._figures, self._figures.counts
        yield _counters(
            "seconds", "Seconds of the inner loop's wall time, by activity.", "activity", asdict(figures.spent())
        )
        moved = {"push": counts.bytes_pushed, "pull": counts.bytes_pulled}
        yield _counters("payload_bytes", "Bytes of payload sent and received.", "direction", moved)
        transfers = {"push": counts.pushes, "pull": counts.pulls}
        yield _counters("transfers", "Fragments sent and received.", "direction", transfers)
        yield _counter("pulls_posted", "Fragments whose pull had waited at the syncer.", counts.posted)
        yield _counter("updates", "Fragments received as an update of the version held.", counts.updates)
        wrong = "Updates that did not give the syncer's version; the fragment was pulled whole."
        yield _counter("updates_wrong", wrong, counts.updates_wrong)
        refused = "Fragments that were not swapped in because their values cannot be trained on."
        yield _counter("pulls_refused", refused, counts.refused)
        yield _counter("pushes_refused", "Outer gradients that the syncer refused.", counts.pushes_refused)
        yield _counter("transfer_retries", "Transfers that failed and were retried.", counts.retries)
        yield _counter("sessions", "Times that the syncer admitted this learner.", figures.sessions())
        yield _gauge("joined", "1 while there is a session.", float(figures.joined()))
        yield _gauge("batch_sequences", "Sequences in an inner step.", figures.batch_size)
        if figures.processes > 1:
            yield _gauge("processes", "Processes that are this learner.", figures.processes)
        waited = "Inner steps since the most stale fragment was received."
        yield _gauge("staleness_steps", waited, figures.staleness_steps())
        news = figures.news()
        if news is None:
            return
        yield _gauge("steps", "Inner steps of this learner, over all its processes.", news.step)
        yield _gauge("tokens", "Tokens of this learner, over all its processes.", news.tokens)
        yield _gauge("step_seconds", "Duration of the latest inner step, in seconds.", news.step_seconds)
        yield _gauge("loss", "Training loss of the latest step, in the task's unit.", news.loss)
        yield _gauge("gradient_norm", "Global norm of the latest step's gradient before clipping.", news.gradient_norm)
        yield _gauge("learning_rate", "Learning rate of the latest step.", news.learning_rate)
        if figures.flops_of_token and figures.peak_flops:
            done = figures.flops_of_token * figures.tokens_per_step / news.step_seconds if news.step_seconds else 0.0
            text = (
                "Share of the device's peak arithmetic that the latest step used (MFU): the operations of its matrix "
                "products, those of attention included."
            )
            yield _gauge("flops_utilization_ratio", text, done / figures.peak_flops)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
