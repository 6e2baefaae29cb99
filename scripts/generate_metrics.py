"""Writes the lists of metrics in docs/reference/measurements.md from the metrics that the processes serve.

python scripts/generate_metrics.py            # write them
python scripts/generate_metrics.py --check    # fail if they are not what the processes serve
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from generated import REPOSITORY, between_marks, main
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.transfers import TransferCounts
from diloco.learner.metrics import LearnerFigures, registry_of
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.wire.messages import StepReport
from diloco_operator.cluster_state import ClusterSeen, ClusterState, Credential, Expiring
from diloco_operator.decide.observed import SyncerStatusView
from diloco_operator.jobs.job_metrics import JobMetrics, JobSeen
from diloco_operator.process.metrics import Gauges, Metrics

PAGE = REPOSITORY / "docs/reference/measurements.md"
COMMAND = "make metrics"
REPORT = StepReport(1, step=1, tokens=1, step_seconds=1.0, loss=1.0, data_position=1)


def _syncer() -> CollectorRegistry:
    metrics = SyncerMetrics()
    metrics.page(_status())
    return metrics.registry


def _status() -> SyncerStatus:
    return SyncerStatus.model_validate(_example(SyncerStatus))


def _learner() -> CollectorRegistry:
    figures = LearnerFigures(
        spent=TimeSpent,
        news=lambda: REPORT,
        staleness_steps=lambda: 0,
        sessions=lambda: 1,
        joined=lambda: True,
        over=lambda: False,
        counts=TransferCounts(),
        batch_size=1,
        processes=2,
        flops_of_token=1.0,
        peak_flops=1.0,
    )
    return registry_of(figures)


def _operator() -> CollectorRegistry:
    metrics = Metrics()
    metrics.show(Gauges(lambda: 0, lambda: Counter(["New"]), lambda: {"jobs": 0.0}, lambda: True, lambda: 0.0))
    metrics.registry.register(JobMetrics(lambda: [_job()]))
    return metrics.registry


def _job() -> JobSeen:
    """A job of which everything is known."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    syncer = SyncerStatusView.model_validate(_status().model_dump())
    region = _example(str)  # as in that status
    status = {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Training", "lastTransitionTime": str(now), "message": ""}
        ],
        "regions": [{"name": region, "cluster": "other"}],
    }
    job = {"metadata": {"namespace": "team", "name": "job"}, "status": status}
    clusters = {"other": ClusterSeen(ClusterState.READY, expiring=Expiring(Credential.TOKEN, now, now))}
    return JobSeen(job, clusters, syncer, now)


def _example(kind: Any) -> Any:
    """A value of this type in which nothing optional is missing, so that every metric of a status is served."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is None:
        return _example_of_class(kind)
    if origin is Literal:
        return of[0]
    if origin is dict:
        return {_example(of[0]): _example(of[1])}
    of_one = _example(next(one for one in of if one is not type(None)))
    return of_one if origin in (Union, UnionType, Annotated) else [of_one]


def _example_of_class(kind: Any) -> Any:
    if issubclass(kind, BaseModel):
        return {one.alias or name: _example(one.annotation) for name, one in kind.model_fields.items()}
    if is_dataclass(kind):
        return {name: _example(one) for name, one in get_type_hints(kind).items()}
    return next(iter(kind)) if issubclass(kind, Enum) else kind(1)


def _lines(registry: CollectorRegistry) -> Iterator[str]:
    # prometheus_client tells the labels of a metric without samples only by this attribute.
    named = {one._name: one._labelnames for one in _wrappers(registry)}  # noqa: SLF001
    for family in sorted(registry.collect(), key=lambda one: one.name):
        labels = named.get(family.name) or [key for one in family.samples[:1] for key in one.labels if key != "le"]
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown = f"{name}{{{','.join(labels)}}}" if labels else name
        kind = " (histogram)" if family.type == "histogram" else ""
        yield f"- `{shown}`{kind}: {family.documentation.rstrip('.')}"


def _wrappers(registry: CollectorRegistry) -> Iterator[MetricWrapperBase]:
    for collector in registry._collector_to_names:  # noqa: SLF001  -- no public list of collectors
        if isinstance(collector, MetricWrapperBase):
            yield collector


def lists() -> str:
    """A list for each kind of process, as Markdown."""
    lines = []
    for title, registry in (("Syncer", _syncer()), ("Learner", _learner()), ("Operator", _operator())):
        lines += ["", f"### {title}", "", *_lines(registry)]
    return "\n".join([*lines, "", ""])


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: between_marks(PAGE, "metrics", lists())}, COMMAND))
