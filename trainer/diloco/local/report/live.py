"""The report of a job while it runs, which its syncer serves: from its status, and from files that it writes.

They are the curves and the syncer's journal, and for a run on this machine the supervisor's journal too. So the page is
whole again after a restart of the syncer, and costs the event loop one status. What only the tape has, each single
wait of a learner, is in the report at the end.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from diloco.core.engine.actions import NoteKind
from diloco.local.directory import RunDirectory
from diloco.local.report.history import (
    EvaluationPoint,
    LearnerHistory,
    LossPoint,
    MergePoint,
    RecoveryPoint,
    RegionSample,
    RunHistory,
    Sample,
)
from diloco.local.report.html import HEADERS, LOSSES_DRAWN, render_report
from diloco.local.report.timeline import RunClock, faults, incidents, processes_noted, spans, stretches, turns
from diloco.local.targets import SYNCER
from diloco.local.time_classes import shares_of
from diloco.local.view.units import count_text, duration_text
from diloco.runtime.http import Response
from diloco.runtime.journal import Entry, older_part, read_journal
from diloco.spec.status.curves import FILE, CurveRow, MergeCurve
from diloco.spec.status.engine import EvaluationStatus, LearnerState, Phase, RecoveryStatus
from diloco.spec.status.syncer import RegionBytes, SyncerStatus
from diloco.syncer.reporting.decisions import JOURNAL
from diloco.syncer.tracking.curve_reader import CurveError, CurveReader

_MOST_POINTS: Final = 4000
"""Rows that are kept: those of a whole job and of many restarts; beyond it every second one goes (ours)."""


@dataclass(frozen=True, slots=True)
class _Point:
    """What the page needs of a row of the curves."""

    unix_seconds: float
    merged_tokens: float
    time_seconds: dict[str, float]
    losses: dict[str, float]
    """By learner, of those whose curves are drawn."""
    merge: MergeCurve | None
    bytes_by_region: tuple[RegionBytes, ...]

    @classmethod
    def of(cls, row: CurveRow) -> "_Point":
        drawn = list(row.learners.items())[:LOSSES_DRAWN]
        losses = {learner: one.loss for learner, one in drawn if one.loss is not None}
        return cls(row.unix_seconds, row.merged_tokens, row.time_seconds, losses, row.merge, row.bytes_by_region)


class LivePage:
    """Draws the page. Not for several threads at once."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        """``directory``: the syncer's own. ``clock`` returns Unix time."""
        run = RunDirectory(directory.absolute().parent)
        self._journal = directory / JOURNAL
        self._supervisors = run.journal if run.syncer == directory.absolute() else None
        self._curves, self._points = CurveReader(directory / FILE), list[_Point]()
        self._clock = clock

    def __call__(self, status: SyncerStatus) -> Response:
        """The page of a job that is as in ``status``."""
        history = self.history(status)
        left = "" if status.seconds_left is None else f", about {duration_text(status.seconds_left)} left"
        at = time.strftime("%H:%M:%S UTC", time.gmtime(self._clock()))
        told = f"At {at}: {count_text(status.tokens_per_second)} tokens/s{left}."
        page = render_report(history, "", "The job is over." if status.finished else told)
        return Response(page.encode(), "text/html; charset=utf-8", headers=HEADERS)

    def history(self, status: SyncerStatus) -> RunHistory:
        """The history so far."""
        notes = [one for one in _problems(status) if one]
        try:
            for row in self._curves.rows():
                self._points.append(_Point.of(row))
                if len(self._points) > _MOST_POINTS:
                    del self._points[1::2]
        except CurveError as error:
            notes.append(str(error))
        try:
            journal = self._entries(status)
        except OSError as error:
            journal = []
            notes.append(f"what became of learners is not known: {error}")
        return _history(status, _Seen.of(self._points, journal, self._clock()), notes)

    def _entries(self, status: SyncerStatus) -> list[Entry]:
        """Both journals, by time."""
        own = read_journal(self._journal)
        if own and older_part(self._journal).is_file():
            own = [*_from_before(own, status), *own]
        above = read_journal(self._supervisors, sparse=True) if self._supervisors else []
        entries = [*above, *own] if above else list(_alone(own, [point.unix_seconds for point in self._points]))
        return sorted(entries, key=lambda entry: entry.time)


def _from_before(own: Sequence[Entry], status: SyncerStatus) -> Iterator[Entry]:
    """Entries, at the time of the first of ``own``, for learners that train and whose own are too old to be kept."""
    known = {entry.process for entry in own if entry.event == "admit"}
    for learner in status.learners:
        if learner.state == LearnerState.TRAINING and learner.id not in known:
            yield Entry("admit", learner.id, own[0].time)
            yield Entry("note", learner.id, own[0].time, {"kind": NoteKind.LEARNER_TRAINS})


def _alone(own: Sequence[Entry], seen: Sequence[float]) -> Iterator[Entry]:
    """A syncer's journal with entries that a supervisor would have made, as far as the syncer can know.

    A learner starts when it is first admitted; a syncer that serves again was away since the last sign of the one
    before: an entry, or one of the times ``seen``.
    """
    if seen:
        yield Entry("curves", SYNCER, min(seen))
    known: set[str] = set()
    latest, ordered = 0.0, sorted(seen)
    for entry in own:
        if entry.event == "serves":
            if latest:
                signs = [at for at in ordered if latest < at < entry.time]
                yield Entry("away", SYNCER, signs[-1] if signs else latest)
            yield Entry("start", SYNCER, entry.time, {"restarts": int(bool(latest)) and _before(entry)})
        elif entry.event == "admit" and entry.process not in known:
            known.add(entry.process)
            yield Entry("start", entry.process, entry.time)
        elif entry.details.get("kind") == NoteKind.LEARNER_LEFT and entry.details.get("reason") != "left":
            yield Entry("lost", entry.process, entry.time, entry.details)
        latest = max(latest, entry.time)
        yield entry


def _before(entry: Entry) -> int:
    """How many times the syncer had started before."""
    epoch = entry.details.get("epoch", "")
    return int(epoch) - 1 if str(epoch).isdecimal() else 1


def _problems(status: SyncerStatus) -> tuple[str, ...]:
    return (
        status.tape_problem and f"The tape: {status.tape_problem}.",
        status.checkpoint.problem and f"Checkpoints: {status.checkpoint.problem}.",
        status.backup.problem and f"Backups: {status.backup.problem}." if status.backup is not None else "",
        f"Links: {status.links.reason}." if status.links is not None else "",
        *(f"{one.name}: {one.problem}." for one in status.trackers if one.problem),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is on disk, in seconds of the run."""

    journal: Sequence[Entry]
    clock: RunClock
    points: Sequence[tuple[float, _Point]]
    now: float

    @classmethod
    def of(cls, points: Sequence[_Point], journal: Sequence[Entry], unix: float) -> "_Seen":
        clock = RunClock(journal)
        return cls(journal, clock, [(clock.seconds(one.unix_seconds), one) for one in points], clock.seconds(unix))

    def losses(self, learner: str) -> tuple[LossPoint, ...]:
        return tuple(
            LossPoint(at, point.merged_tokens, point.losses[learner])
            for at, point in self.points
            if learner in point.losses
        )

    def evaluated(self, one: EvaluationStatus) -> EvaluationPoint:
        """At the time at which the curves have its tokens."""
        at = next((at for at, point in self.points if point.merged_tokens >= one.tokens), self.now)
        loss = math.nan if one.loss is None else one.loss
        return EvaluationPoint(at, one.tokens, loss, one.final, one.doubted, one.learner)

    def recovered(self, one: RecoveryStatus) -> RecoveryPoint:
        joined = next((self.clock.seconds(entry.time) for entry in self.journal if entry.event == "admit"), 0.0)
        return RecoveryPoint(joined + one.lost_seconds + one.seconds, one)


def _history(status: SyncerStatus, seen: _Seen, notes: Sequence[str]) -> RunHistory:
    processes, changes, now = processes_noted(seen.journal), turns(seen.journal, seen.clock), seen.now
    learners = [
        replace(
            LearnerHistory.of(one, spans(changes.get(one.id, ()), now), processes.get(one.id, 1)),
            losses=seen.losses(one.id),
        )
        for one in status.learners
    ]
    train = sum(one.state == LearnerState.TRAINING for one in status.learners)
    reason = f"{train} of {len(status.learners)} learners train" if status.phase == Phase.TRAINING else ""
    samples = [Sample.of(at, one.merged_tokens, one.time_seconds) for at, one in seen.points]
    return RunHistory(
        job=status.job,
        seconds=now,
        phase=status.phase,
        phase_reason=reason or status.phase_reason,
        budget_tokens=status.budget_tokens,
        merged_tokens=status.merged_tokens,
        syncer_steps=status.syncer_step,
        parameters=status.parameters,
        merged=status.merged,
        time=shares_of(status.time_seconds),
        learners=tuple(learners),
        evaluations=tuple(map(seen.evaluated, status.evaluations)),
        merges=tuple(_merge(at, one.merge) for at, one in seen.points if one.merge is not None),
        samples=(*samples, Sample.of(now, status.merged_tokens, status.time_seconds)),
        incidents=incidents(seen.journal, seen.clock),
        syncer_life=spans(changes.get(SYNCER, ()), now),
        cuts=stretches(seen.journal, seen.clock, now),
        quorum=status.quorum,
        quorum_wanted=status.quorum_wanted,
        notes=tuple(notes),
        bytes_by_region=status.bytes_by_region,
        region_samples=tuple(RegionSample(at, one.bytes_by_region) for at, one in seen.points),
        measured_links=status.measured_links,
        computing=status.computing,
        recoveries=tuple(map(seen.recovered, status.recoveries.latest)),
        faults=faults(seen.journal, seen.clock),
    )


def _merge(at: float, one: MergeCurve) -> MergePoint:
    return MergePoint(at, one.fragment, one.version, one.members, one.asked, one.waited_seconds, one.versions_behind)
