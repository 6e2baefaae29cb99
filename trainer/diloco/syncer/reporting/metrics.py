"""The syncer's Prometheus metrics.

Counters and histograms are updated as events happen; the rest is read from the status at every scrape. One syncer
serves one job, so no metric has a label for the job: the scrape target identifies it.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from diloco.core.engine.actions import Action, Fence, Merge, Note, NoteKind, Refuse
from diloco.runtime.build import show_build
from diloco.spec.status.curves import FragmentCurve
from diloco.spec.status.engine import LearnerState, RecoveriesStatus
from diloco.spec.status.syncer import BackupStatus, LinksStatus, SyncerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_MOST_LEARNERS = 64
"""Above this number of learners there are no series per learner: each would have one for every class of time."""
_FITS = "Fits"


class SyncerMetrics:
    """All metrics of one syncer process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        show_build(self.registry)
        self._decisions = Counter(
            "diloco_decisions",
            "Decisions of the engine",
            ("kind", "detail"),
            registry=self.registry,
        )
        self._quorum = self._histogram("diloco_quorum_seconds", "Seconds from opening a round to its quorum")
        self._grace = self._histogram("diloco_grace_seconds", "Seconds from the quorum to freezing the members")
        self.merge_seconds = self._histogram("diloco_merge_seconds", "Seconds that a merge took")
        self.checkpoint_seconds = self._histogram("diloco_checkpoint_seconds", "Seconds that writing a checkpoint took")
        self.merge_failures = Counter(
            "diloco_merge_failures", "Merges that failed and left the fragment unchanged", registry=self.registry
        )
        self.members_left_out = Counter(
            "diloco_members_left_out",
            "Outer gradients left out of a merge because they were not credible",
            registry=self.registry,
        )
        self.members_clipped = Counter(
            "diloco_members_clipped",
            "Outer gradients of which a tensor was clipped in a merge, as it was twice as large as the members' median",
            registry=self.registry,
        )
        self.updates_not_encoded = Counter(
            "diloco_updates_not_encoded",
            "Versions sent whole because their update could not be encoded",
            registry=self.registry,
        )
        self.pushes_refused = Counter("diloco_pushes_refused", "Pushes that were refused", registry=self.registry)
        self.pulls = Counter(
            "diloco_pulls", "Fragments sent, whole or as an update", ("payload",), registry=self.registry
        )
        self.posted_pulls = Gauge(
            "diloco_posted_pulls", "Posted pulls that wait for their version", registry=self.registry
        )
        self.claims_refused = Counter(
            "diloco_claims_refused",
            "Reports and pushes that were refused because they claim more work than is possible",
            registry=self.registry,
        )
        self._gradient_norm = Gauge(
            "diloco_outer_gradient_norm",
            "L2 norm of the latest merged outer gradient",
            ["fragment"],
            registry=self.registry,
        )
        self._agreement = Gauge(
            "diloco_agreement_ratio",
            "Length of the mean of the learners' directions in the latest merge: 1 if they agree",
            ["fragment"],
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "diloco_event_loop_lag_seconds", "How late the event loop is, in seconds", registry=self.registry
        )
        self.inbox_bytes = Gauge(
            "diloco_inbox_bytes", "Bytes of outer gradients held in memory", registry=self.registry
        )
        self._disk_size = Gauge("diloco_disk_size_bytes", "Size of the syncer's volume", registry=self.registry)
        self._disk_free = Gauge(
            "diloco_disk_free_bytes", "Bytes of the syncer's volume that are free for it", registry=self.registry
        )
        self._state = _StatusCollector()
        self.registry.register(self._state)
        self._opened: dict[int, float] = {}
        self._quorum_at: dict[int, float] = {}

    def observe(self, action: Action, now: float) -> None:
        """Count a decision, and time rounds by the decisions about them."""
        detail = action.kind.value if isinstance(action, Note) else ""
        if isinstance(action, Fence | Refuse):
            detail = action.refusal.value
        self._decisions.labels(type(action).__name__, detail).inc()
        if isinstance(action, Note) and action.fragment >= 0:
            self._observe_note(action.kind, action.fragment, now)
        elif isinstance(action, Merge) and action.fragment in self._opened:  # others make means
            opened = self._opened.pop(action.fragment)
            quorum_at = self._quorum_at.pop(action.fragment, None)
            if quorum_at is None:
                self._quorum.observe(now - opened)
            self._grace.observe(0.0 if quorum_at is None else now - quorum_at)

    def observe_curve(self, fragment: int, curve: FragmentCurve) -> None:
        """Record a merge's figures."""
        self._gradient_norm.labels(fragment).set(curve.gradient_norm)
        self._agreement.labels(fragment).set(curve.agreement)

    def observe_disk(self, directory: Path) -> None:
        """Record how full the volume with this directory is."""
        with suppress(OSError):  # what is wrong with it, the status says
            found = shutil.disk_usage(directory)
            self._disk_size.set(found.total)
            self._disk_free.set(found.free)

    def page(self, status: SyncerStatus) -> bytes:
        """The page in Prometheus' text format, with the job's state as in ``status``."""
        self._state.status = status
        return generate_latest(self.registry)

    def _observe_note(self, kind: NoteKind, fragment: int, now: float) -> None:
        if kind is NoteKind.ROUND_OPENED:
            self._opened[fragment] = now
            self._quorum_at.pop(fragment, None)
        elif kind is NoteKind.ROUND_WAITS and fragment not in self._quorum_at:  # later ones decide it again
            self._quorum.observe(now - self._opened.get(fragment, now))
            self._quorum_at[fragment] = now

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self.registry)


class _StatusCollector(Collector):
    """Turns a status into metrics at every scrape, so that the two always agree."""

    def __init__(self) -> None:
        self.status: SyncerStatus | None = None

    def collect(self) -> Iterator[Metric]:
        if self.status is not None:
            yield from _state(self.status)


def _state(status: SyncerStatus) -> Iterator[Metric]:
    # Totals of the job are gauges, because they go back when a syncer resumes from a checkpoint.
    yield _gauge("diloco_epoch", "Number of this start of the syncer, counted from 1", status.epoch)
    yield _gauge("diloco_merged_tokens", "Tokens merged into the global model", status.merged_tokens)
    yield _gauge("diloco_budget_tokens", "Token budget of the job", status.budget_tokens)
    yield _gauge("diloco_syncer_steps", "Merges done", status.syncer_step)
    yield _gauge("diloco_inner_steps", "Inner steps of all learners", status.inner_steps)
    yield _gauge("diloco_tokens", "Tokens trained by all learners", status.trained_tokens)
    yield _gauge("diloco_rounds_in_flight", "Fragments in flight", status.rounds_in_flight)
    yield _region_bytes(status)
    yield _gauge(
        "diloco_goodput_ratio", "Share of the learners' time in which they compute inner steps", status.goodput or 0.0
    )
    yield _gauge(
        "diloco_merged_ratio", "Share of the learners' time whose work is in the global model", status.merged or 0.0
    )
    if status.links is not None:
        yield from _links(status.links)
    yield _recoveries(status.recoveries)
    if status.eval_loss is not None:
        yield _gauge("diloco_eval_loss", "Loss of the latest credible evaluation, in the task's unit", status.eval_loss)
    learners = GaugeMetricFamily("diloco_learners", "Learners by state", labels=["state"])
    for state in LearnerState:
        learners.add_metric([state], sum(learner.state == state for learner in status.learners))
    yield learners
    silent = "Learners that leave requests unanswered, so that neither pace nor quorum counts them"
    yield _gauge("diloco_learners_not_answering", silent, sum(bool(one.unanswered_now) for one in status.learners))
    resets = "Times that a learner which had diverged started over from the global model"
    yield _gauge("diloco_learner_resets", resets, sum(learner.resets for learner in status.learners))
    yield from _time(status)
    yield _counter("diloco_checkpoint_failures", "Checkpoints that could not be written", status.checkpoint.failures)
    if status.checkpoint.age_seconds is not None:
        yield _gauge(
            "diloco_checkpoint_age_seconds",
            "Seconds since the newest checkpoint, or since this start of the syncer",
            status.checkpoint.age_seconds,
        )
    if status.backup is not None:
        yield from _backup(status.backup)
    yield _gauge("diloco_tape_failing", "1 while the tape cannot be written", int(bool(status.tape_problem)))


def _backup(backup: BackupStatus) -> Iterator[Metric]:
    yield _counter("diloco_backup_failures", "Backups that could not be uploaded", backup.failures)
    yield _counter("diloco_backup_bytes", "Bytes uploaded for backups, failed uploads included", backup.uploaded_bytes)
    yield _gauge("diloco_backup_failing", "1 while backups cannot be uploaded", int(bool(backup.problem)))
    if backup.age_seconds is not None:
        yield _gauge("diloco_backup_age_seconds", "Seconds since the newest backup was complete", backup.age_seconds)


def _region_bytes(status: SyncerStatus) -> Metric:
    text = "Bytes between learners and syncer: up or down, and bulk, control or again (parts that had passed before)"
    moved = GaugeMetricFamily("diloco_region_bytes", text, labels=["region", "way", "kind"])
    for one in status.bytes_by_region:
        for way, kinds in (("up", one.up), ("down", one.down)):
            for kind, count in kinds.model_dump().items():
                moved.add_metric([one.region, way, kind], count)
    return moved


def _time(status: SyncerStatus) -> Iterator[Metric]:
    # Gauges: pending time is reclassified later, and a learner that was away may report afterwards that it trained.
    job = GaugeMetricFamily(
        "diloco_allotted_seconds", "Learner-seconds that the job was allotted, by class", labels=["class"]
    )
    for kind, seconds in status.time_seconds.items():
        job.add_metric([kind], seconds)
    yield job
    if len(status.learners) > _MOST_LEARNERS:
        return
    text = "Cosine between a learner's outer gradients and the others', moving average: below 0 it points against them"
    agreement = GaugeMetricFamily("diloco_learner_agreement_ratio", text, labels=["learner"])
    for learner in status.learners:
        if learner.agreement is not None:
            agreement.add_metric([learner.id], learner.agreement)
    yield agreement
    text = "Seconds that a learner was allotted, by class"
    each = GaugeMetricFamily("diloco_learner_allotted_seconds", text, labels=["learner", "class"])
    for learner in status.learners:
        for kind, seconds in learner.time_seconds.items():
            each.add_metric([learner.id, kind], seconds)
    yield each


def _links(links: LinksStatus) -> Iterator[Metric]:
    yield _gauge("diloco_links_fit", "1 while overlap, interval and links fit together", int(links.kind == _FITS))
    used = GaugeMetricFamily(
        "diloco_link_used_ratio", "Share of a link's capacity that fragments take", labels=["link", "way"]
    )
    for link in links.used:
        used.add_metric([link.name, "up"], link.up)
        used.add_metric([link.name, "down"], link.down)
    yield used


def _recoveries(recoveries: RecoveriesStatus) -> Metric:
    text = "Seconds from the loss of a learner to its first merged outer gradient, by part"
    found = HistogramMetricFamily("diloco_recovery_seconds", text, labels=["part"])
    names = [*(f"{bound:g}" for bound in recoveries.bounds), "+Inf"]
    for one in recoveries.parts:
        upto = [float(count) for count in accumulate(one.counts)]
        found.add_metric([one.part], list(zip(names, upto, strict=False)), one.total_seconds)
    return found


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
