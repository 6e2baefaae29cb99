"""What /metrics says of each job that this process looks after.

Read at every scrape from what the operator has anyway: the job, the latest answer of its syncer, and the clusters that
it names. So a job that is gone has no series. Whoever creates a job chooses what its syncer answers, so each label is
one of a few known values, or a region of the job's status.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco.spec.backup import Backup
from diloco.spec.placement import SyncerSpec
from diloco.spec.status.engine import LearnerState
from diloco.spec.status.job import JobStatus, Phase, Progress
from diloco_operator.api_server.kinds import Object
from diloco_operator.cluster_state import ClusterSeen
from diloco_operator.decide.causes.ends import End
from diloco_operator.decide.observed import BytesReport, LearnerReport, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import CONDITION_TYPES, remembered
from diloco_operator.decide.status.progress import progress_of
from diloco_operator.jobs.jobs import key_of
from diloco_operator.objects import mapping

_log = logging.getLogger(__name__)
MOST_JOBS: Final = 1000
"""Jobs that have series (ours), those that have not ended first: so many take the event loop most of a second."""
OTHER: Final = "Other"
"""The label of a phase or a reason that this version does not write."""
_PREFIX: Final = "diloco_job_"
_JOB: Final = ("namespace", "job_name")
"""Not ``job``: Prometheus gives each series a label of that name."""
_PHASES: Final = frozenset(get_args(Phase))
_REASONS: Final = frozenset(Reason)
_STATES: Final = MappingProxyType({"True": 1.0, "False": 0.0, "Unknown": -1.0})
_REGION: Final = ("region",)
_CHECKPOINT_SECONDS: Final[int] = SyncerSpec.model_fields["checkpoint_every_seconds"].default
_BACKUP_SECONDS: Final[int] = Backup.model_fields["every_seconds"].default

_METRICS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        "condition": ("1 if the condition is True, 0 if it is False, -1 if it is Unknown.", ("condition", "reason")),
        "phase": ("1 for the phase of the job.", ("phase",)),
        "learners_desired": ("Learners that the job asks for; 0 while it is suspended or finished.", _REGION),
        "learners_ready": ("Learners whose pods are ready.", _REGION),
        "learners_training": ("Learners that train; absent while the syncer does not answer.", _REGION),
        "learners_lost": ("Learners that had a session with the syncer and lost it.", _REGION),
        "learners_quarantined": ("Learners in quarantine.", _REGION),
        "learners_given_up": ("Learners that are given up.", _REGION),
        "learner_restarts": ("Times that a new process took a learner's place.", _REGION),
        "learner_resets": ("Times that a diverged learner started over from the global model.", _REGION),
        "quorum_learners": ("Learners that must have sent a fragment before it is merged.", ()),
        "cluster_ready": ("1 while the other cluster that the region is in is ready.", _REGION),
        "credential_expiry_timestamp_seconds": (
            "When access to the region's cluster ends: its client certificate, or a token that could not be renewed.",
            _REGION,
        ),
        "steps": ("Merges done.", ()),
        "tokens": ("Tokens merged into the global model.", ()),
        "budget_tokens": ("Tokens that the job asks for.", ()),
        "remaining_seconds": ("Estimated time until the budget is merged; absent while there is no rate.", ()),
        "eval_loss": ("Loss of the latest credible evaluation, in the task's unit.", ()),
        "train_loss": ("Mean training loss of the learners, in the task's unit.", ()),
        "loss_finite": ("0 if the loss of the latest evaluation was not a number, otherwise 1.", ()),
        "goodput_ratio": ("Share of the learners' time in which they compute inner steps, to a percent.", ()),
        "merged_ratio": ("Share of the learners' time whose work is in the global model, to a percent.", ()),
        "checkpoint_timestamp_seconds": (
            "When the newest checkpoint was written, or when the syncer was started if that is later.",
            (),
        ),
        "checkpoint_interval_seconds": ("Seconds between checkpoints, as the manifest says.", ()),
        "backup_timestamp_seconds": (
            "When the newest backup was complete; absent until this start of the syncer has completed one.",
            (),
        ),
        "backup_interval_seconds": ("Seconds between backups, as the manifest says; absent without backups.", ()),
        "uplink_used_ratio": ("Share of the region's fullest link to the syncer that fragments take.", _REGION),
        "downlink_used_ratio": ("Share of the region's fullest link from the syncer that fragments take.", _REGION),
        "uplink_bytes": ("Bytes from the region's learners to the syncer, over the whole job.", _REGION),
        "downlink_bytes": ("Bytes from the syncer to the region's learners, over the whole job.", _REGION),
    }
)
"""By name: what it is, and its labels beside those of the job. All are gauges: totals go back with a checkpoint."""
_RESTARTS: Final = f"Times that a container or a pod of the job ended, as this process saw, by cause: {', '.join(End)}."

_Sample = tuple[str, tuple[str, ...], float]
"""Name, values of its own labels, value."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job, and what is known of it."""

    job: Object
    clusters: Mapping[str, ClusterSeen]
    """The other clusters that it names."""
    syncer: SyncerStatusView | None
    """The latest answer of its syncer; None: it does not answer, or is not asked."""
    heard_at: datetime
    """When that came."""
    ends: Mapping[End, int] = field(default_factory=dict)
    """Of its processes, by cause, as this process has seen them."""


class JobMetrics(Collector):
    """The series of all jobs."""

    def __init__(self, seen: Callable[[], Iterable[JobSeen]]) -> None:
        """``seen`` is called at every scrape, and gives the jobs that this process looks after."""
        self._seen = seen
        self._left_out = 0

    def collect(self) -> Iterable[Metric]:
        """All series now."""
        families = {
            name: GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=(*_JOB, *own))
            for name, (text, own) in _METRICS.items()
        }
        restarts = CounterMetricFamily(f"{_PREFIX}restarts", _RESTARTS, labels=(*_JOB, "cause"))
        known = sorted(self._seen(), key=_order)
        for one in known[:MOST_JOBS]:
            key = key_of(one.job)
            for name, own, value in _samples(one):
                families[name].add_metric((*key, *own), value)
            for end in End:
                restarts.add_metric((*key, end), one.ends.get(end, 0))
        yield from (*families.values(), restarts)
        left_out = max(0, len(known) - MOST_JOBS)
        if left_out > self._left_out == 0:
            _log.warning("%d jobs have no metrics: the others are %d", left_out, MOST_JOBS)
        self._left_out = left_out
        text = f"Jobs without series of their own, as there are more than {MOST_JOBS}."
        yield GaugeMetricFamily("diloco_operator_jobs_without_metrics", text, value=left_out)


def _order(one: JobSeen) -> tuple[bool, tuple[str, str]]:
    return "completionTime" in mapping(one.job.get("status")), key_of(one.job)


def _samples(one: JobSeen) -> Iterator[_Sample]:
    status = remembered(one.job)
    yield from _of_status(status)
    for region in status.regions:
        seen = one.clusters.get(region.cluster or "")
        if seen is not None and seen.expiring is not None:
            yield "credential_expiry_timestamp_seconds", (region.name,), seen.expiring.expires.timestamp()
    progress = status.progress if one.syncer is None else progress_of(one.syncer, one.heard_at)
    if progress is not None:
        yield from _of_progress(progress)
    if one.syncer is not None:
        yield from _of_syncer(one.syncer, {region.name for region in status.regions})
        yield from _of_storage(one.syncer, one.job, one.heard_at.timestamp())


def _of_status(status: JobStatus) -> Iterator[_Sample]:
    for one in status.conditions:
        if one.type in CONDITION_TYPES:
            reason = one.reason if one.reason in _REASONS else OTHER
            yield "condition", (one.type, reason), _STATES[one.status]
    yield "phase", (status.phase if status.phase in _PHASES else OTHER,), 1.0
    for region in status.regions:
        here = (region.name,)
        yield "learners_desired", here, region.desired
        yield "learners_ready", here, sum(pool.ready for pool in region.pools)
        if not status.learners.summary.startswith("?"):
            yield "learners_training", here, region.training
        yield "learners_given_up", here, sum(len(pool.given_up or ()) for pool in region.pools)
        if region.cluster is not None:
            yield "cluster_ready", here, float(region.since is None)


def _of_progress(progress: Progress) -> Iterator[_Sample]:
    figures = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "budget_tokens": progress.budget_tokens,
        "remaining_seconds": progress.seconds_left,
        "eval_loss": _number(progress.loss),
        "train_loss": _number(progress.train_loss),
        "goodput_ratio": _number(progress.goodput),
        "merged_ratio": _number(progress.merged),
    }
    for name, value in figures.items():
        if value is not None:
            yield name, (), _float(value)


def _of_syncer(view: SyncerStatusView, regions: set[str]) -> Iterator[_Sample]:
    if view.quorum:
        yield "quorum_learners", (), _float(view.quorum)
    if view.evaluations:
        yield "loss_finite", (), float(view.evaluations[-1].loss is not None)
    counts = {name: Counter[str]() for name in ("lost", "quarantined", "restarts", "resets")}
    for learner in view.learners:
        region = _region_of(learner.id)
        counts["lost"][region] += _is_lost(learner)
        counts["quarantined"][region] += learner.state == LearnerState.QUARANTINED
        counts["restarts"][region] += learner.restarts
        counts["resets"][region] += learner.resets
    for region in regions:
        yield "learners_lost", (region,), counts["lost"][region]
        yield "learners_quarantined", (region,), counts["quarantined"][region]
        yield "learner_restarts", (region,), _float(counts["restarts"][region])
        yield "learner_resets", (region,), _float(counts["resets"][region])
    up, down = dict[str, float](), dict[str, float]()
    for link in view.links.used if view.links is not None else ():
        region = _region_of(link.name)
        if region in regions:
            up[region], down[region] = max(link.up, up.get(region, 0.0)), max(link.down, down.get(region, 0.0))
    for region, used in up.items():
        yield "uplink_used_ratio", (region,), used
        yield "downlink_used_ratio", (region,), down[region]
    for region, moved in {one.region: one for one in view.bytes_by_region if one.region in regions}.items():
        yield "uplink_bytes", (region,), _total(moved.up)
        yield "downlink_bytes", (region,), _total(moved.down)


def _of_storage(view: SyncerStatusView, job: Object, heard_seconds: float) -> Iterator[_Sample]:
    spec = mapping(mapping(job.get("spec")).get("syncer"))
    yield "checkpoint_interval_seconds", (), _interval(spec.get("checkpointEverySeconds"), _CHECKPOINT_SECONDS)
    if view.checkpoint.age_seconds is not None:
        yield "checkpoint_timestamp_seconds", (), heard_seconds - view.checkpoint.age_seconds
    if view.backup is not None:
        every = mapping(spec.get("backup")).get("everySeconds")
        yield "backup_interval_seconds", (), _interval(every, _BACKUP_SECONDS)
        if view.backup.age_seconds is not None:
            yield "backup_timestamp_seconds", (), heard_seconds - view.backup.age_seconds


def _interval(given: object, otherwise: int) -> float:
    return _float(given if isinstance(given, int) else otherwise)


def _is_lost(learner: LearnerReport) -> bool:
    return learner.state == LearnerState.ABSENT and learner.incarnation > 0 and not learner.left


def _region_of(place: str) -> str:
    """Of a learner or a pool."""
    return place.partition("/")[0]


def _total(moved: BytesReport) -> float:
    return _float(moved.bulk + moved.control + moved.again)


def _number(text: str | None) -> float | None:
    """The number in a text of the status; of percents the share. None: there is none."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None


def _float(value: float) -> float:
    """A number that a syncer answers, of any size."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
