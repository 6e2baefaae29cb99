"""The history of a run from what its syncer and supervisor leave: curves, journals and a status.

The curves and the syncer's journal are there while the job runs, so the page of a running job and the report at the end
are made of the same. Both are whole again after a restart of the syncer.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, Self

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.actions import NoteKind
from diloco.local.directory import RunDirectory
from diloco.local.report.history import (
    EvaluationPoint,
    LearnerHistory,
    Life,
    LossPoint,
    RegionSample,
    RunHistory,
    Sample,
    Span,
)
from diloco.local.report.timeline import (
    RunClock,
    Turn,
    faults,
    incidents,
    processes_noted,
    recoveries,
    spans,
    stretches,
    turns,
)
from diloco.local.targets import SYNCER
from diloco.local.view.time_classes import shares_of
from diloco.runtime.journal import Entry, older_part, read_journal
from diloco.spec.status.curves import FILE, CurveRow, MergeCurve
from diloco.spec.status.engine import EvaluationStatus, LearnerState, LearnerStatus, Phase
from diloco.spec.status.syncer import RegionBytes, SyncerStatus
from diloco.syncer.reporting.decisions import JOURNAL
from diloco.syncer.tracking.curve_reader import CurveError, CurveReader

LOSSES_DRAWN: Final = 7
"""Learners whose losses are drawn: the page has eight colors."""
_MOST_POINTS: Final = 4000
"""Points that are kept: those of a whole job and of many restarts; beyond it every second one goes (ours)."""


@dataclass(frozen=True, slots=True)
class Point:
    """What the report needs of a row of the curves."""

    epoch: int
    unix_seconds: float
    merged_tokens: float
    time_seconds: dict[str, float]
    losses: dict[str, float]
    """By learner, of those whose curves are drawn."""
    merge: MergeCurve | None
    bytes_by_region: tuple[RegionBytes, ...] = ()

    @classmethod
    def of(cls, row: CurveRow) -> Self:
        """From a row."""
        drawn = list(row.learners.items())[:LOSSES_DRAWN]
        losses = {learner: one.loss for learner, one in drawn if one.loss is not None}
        spent, moved = row.time_seconds, row.bytes_by_region
        return cls(row.epoch, row.unix_seconds, row.merged_tokens, spent, losses, row.merge, moved)


class Points:
    """The points of a job, oldest first, as many as a page can draw."""

    def __init__(self) -> None:
        self.kept: list[Point] = []

    def add(self, point: Point) -> None:
        """Add the next one."""
        self.kept.append(point)
        if len(self.kept) > _MOST_POINTS:
            del self.kept[1::2]


class RunRecord:
    """Reads what is on disk, each row of the curves once. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        """``directory``: the syncer's own."""
        run = RunDirectory(directory.absolute().parent)
        self._journal = directory / JOURNAL
        self._supervisors = run.journal if run.syncer == directory.absolute() else None
        self._curves, self._points = CurveReader(directory / FILE), Points()

    def history(self, status: SyncerStatus, now: float | None, notes: Sequence[str] = ()) -> RunHistory:
        """The history until ``now``, Unix time; None: until the last entry of the journals."""
        told = list(notes)
        try:
            for row in self._curves.rows():
                self._points.add(Point.of(row))
        except CurveError as error:
            told.append(str(error))
        try:
            journal = self._entries(status)
        except OSError as error:
            journal = []
            told.append(f"what became of learners is not known: {error}")
        return history_of(status, self._points.kept, journal, now, told)

    def _entries(self, status: SyncerStatus) -> list[Entry]:
        """Both journals, by time."""
        own = read_journal(self._journal)
        if own and older_part(self._journal).is_file():
            own = with_beginning(own, status)
        above = read_journal(self._supervisors, sparse=True) if self._supervisors else []
        entries = [*above, *own] if above else [*_alone(own, [point.unix_seconds for point in self._points.kept])]
        return sorted(entries, key=lambda entry: entry.time)


def with_beginning(own: Sequence[Entry], status: SyncerStatus) -> list[Entry]:
    """A journal, with entries in place of those too old to be kept: of the syncer, and of learners that train."""
    known = {entry.process for entry in own if entry.event == "admit"}
    missing = [one.id for one in status.learners if one.state == LearnerState.TRAINING and one.id not in known]
    at = own[0].time
    trains = {"kind": NoteKind.LEARNER_TRAINS}
    made = ((Entry("start", one, at), Entry("admit", one, at), Entry("note", one, at, trains)) for one in missing)
    serves = [] if any(entry.event == "serves" for entry in own) else [Entry("serves", SYNCER, at)]
    return [*serves, *chain.from_iterable(made), *own]


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
                before = bisect_left(ordered, entry.time)
                yield Entry("away", SYNCER, max(latest, ordered[before - 1]) if before else latest)
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


def history_of(
    status: SyncerStatus,
    points: Sequence[Point],
    journal: Sequence[Entry],
    now: float | None,
    notes: Sequence[str] = (),
) -> RunHistory:
    """The history until ``now``, Unix time; None: until the last entry of the journal, which is in order of time."""
    clock = RunClock(journal)
    end = clock.end_seconds if now is None else clock.seconds(now)
    shares = shares_of(status.time_seconds)
    processes, changes = processes_noted(journal), turns(journal, clock)
    timed = [(clock.seconds(one.unix_seconds), one) for one in points]
    valid = _not_made_again(timed)
    tokens = [one.merged_tokens for _, one in valid]

    losses: dict[str, list[LossPoint]] = {}
    for at, point in valid:
        for name, loss in point.losses.items():
            losses.setdefault(name, []).append(LossPoint(at, point.merged_tokens, loss))

    def learner(one: LearnerStatus) -> LearnerHistory:
        known = LearnerHistory.of(one, spans(changes.get(one.id, ()), end), processes.get(one.id, 1))
        return replace(known, losses=tuple(losses.get(one.id, ())))

    def evaluated(one: EvaluationStatus) -> EvaluationPoint:
        """At the time at which the curves have its tokens."""
        place = bisect_left(tokens, one.tokens)
        loss = math.nan if one.loss is None else one.loss
        at = valid[place][0] if place < len(valid) else end
        return EvaluationPoint(at, one.tokens, loss, one.final, one.doubted, one.learner)

    train = sum(one.state == LearnerState.TRAINING for one in status.learners)
    reason = f"{train} of {len(status.learners)} learners train" if status.phase == Phase.TRAINING else ""
    return RunHistory(
        job=status.job,
        seconds=end,
        phase=status.phase,
        phase_reason=reason or status.phase_reason,
        budget_tokens=status.budget_tokens,
        merged_tokens=status.merged_tokens,
        syncer_steps=status.syncer_step,
        parameters=status.parameters,
        merged=shares.get(TimeClass.MERGED),
        time=shares,
        learners=tuple(map(learner, status.learners)),
        evaluations=tuple(map(evaluated, status.evaluations)),
        merges=tuple((at, one.merge) for at, one in timed if one.merge is not None),
        samples=(
            *(Sample.of(at, one.merged_tokens, one.time_seconds) for at, one in timed),
            Sample.of(end, status.merged_tokens, status.time_seconds),
        ),
        incidents=incidents(journal, clock),
        syncer_life=spans(changes.get(SYNCER, ()), end),
        cuts=stretches(journal, clock, end),
        inner_steps=status.inner_steps,
        quorum=status.quorum,
        quorum_wanted=status.quorum_wanted,
        notes=tuple(notes),
        bytes_by_region=status.bytes_by_region,
        region_samples=tuple(RegionSample(at, one.bytes_by_region) for at, one in timed),
        measured_links=status.measured_links,
        computing=status.computing,
        recoveries=recoveries(journal, clock),
        faults=faults(journal, clock),
        former=_former(status, changes, end),
    )


def _former(
    status: SyncerStatus, changes: Mapping[str, Sequence[tuple[float, Turn]]], end: float
) -> dict[str, tuple[Span, ...]]:
    """See `RunHistory.former`. Who has left for good is not out of reach or down at the end."""
    lives: dict[str, tuple[Span, ...]] = {}
    if not status.learners:  # no syncer has said who is in the job
        return lives
    for name in sorted(changes.keys() - {SYNCER, *(one.id for one in status.learners)}):
        life = spans(changes[name], end)
        while life and life[-1].life in (Life.AWAY, Life.DOWN):
            life = life[:-1]
        if life:
            lives[name] = life
    return lives


def _not_made_again(timed: Sequence[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """The points without those after the checkpoint from which a later epoch has merged the same tokens again."""
    found: list[tuple[float, Point]] = []
    for at, point in timed:
        if found and point.epoch != found[-1][1].epoch:
            del found[bisect_left(found, point.merged_tokens, key=lambda one: one[1].merged_tokens) :]
        found.append((at, point))
    return found
