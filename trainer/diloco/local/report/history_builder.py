"""Builds a run's history from the syncer's tapes and the supervisor's journal. Pure: both are passed in as values.

The engine is run over each tape again, so that every figure is the engine's own and not a second definition of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING

from diloco.core.engine.actions import Action, Admit, AskFragment, Finish, Merge
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, LearnerLeft, LearnerReady, Merged, StepReported
from diloco.core.engine.options import EngineOptions
from diloco.core.fragments import Layout
from diloco.local.report.history import (
    EvaluationPoint,
    Incident,
    LearnerHistory,
    LossPoint,
    MergePoint,
    RecoveryPoint,
    RunHistory,
    Sample,
    Stretch,
)
from diloco.local.report.timeline import (
    RunClock,
    Turn,
    computing,
    faults,
    incidents,
    incidents_noted,
    links_noted,
    processes_noted,
    region_samples,
    spans,
    stretches,
    thinned,
    turns,
)
from diloco.local.targets import SYNCER
from diloco.local.time_classes import shares_of
from diloco.runtime.journal import Entry
from diloco.spec import DiLoCoJob
from diloco.spec.status.engine import EngineStatus, EvaluationStatus, LearnerState, LearnerStatus
from diloco.tape.reader import TapeEntry, TapeHeader, Torn, engine_of

if TYPE_CHECKING:
    from diloco.spec.status.syncer import RegionBytes

_SAMPLE_SECONDS = 1.0
_BLOCKED_SECONDS = 0.05
"""Shorter waits are counted but not drawn."""
_MOST_INCIDENTS = 10_000
"""Incidents that are kept, the first ones, and recoveries, the latest (ours)."""
_MOST_POINTS = 20_000
"""Samples, losses of a learner, merges or waits of a learner that are kept; beyond it every second one goes (ours)."""
_MOST_TURNS = 6000
"""Changes of a process's state that are kept; beyond it the shorter half of its absences goes (ours)."""


@dataclass(slots=True)
class _Epoch:
    engine: Engine
    now: float
    recovered: int
    left_out_before: dict[str, tuple[int, str]]
    seconds: float = 0.0
    over: float | None = None
    """The engine's time when the job was over; None: it is not."""
    named: set[str] = field(default_factory=set)

    def view(self) -> EngineStatus:
        return self.engine.view(self.now if self.over is None else self.over)


@dataclass(slots=True)
class _Ask:
    opened: float
    asked: set[str] = field(default_factory=set)
    members: int = 0
    behind: int = 0


class HistoryBuilder:
    """Reads tapes one after the other, oldest first, and builds the history."""

    def __init__(self, job: DiLoCoJob, layout: Layout, journal: Sequence[Entry]) -> None:
        self._job = job
        self._layout = layout
        self._journal = journal
        self._clock = RunClock(journal)
        self._processes = processes_noted(journal)
        self._turns: dict[str, list[tuple[float, Turn]]] = turns(journal, self._clock)
        self._epoch: _Epoch
        self._view: EngineStatus | None = None
        self._end = self._clock.end_seconds
        self._losses: dict[str, list[LossPoint]] = defaultdict(list)
        self._recent: dict[str, list[float]] = defaultdict(list)
        self._blocked: dict[str, list[Stretch]] = defaultdict(list)
        self._blocked_before: dict[str, float] = {}
        """By learner: what its process had reported last; a new process begins at nothing again."""
        self._known: dict[str, LearnerStatus] = {}
        """As last seen, also of learners that a later manifest does not have."""
        self._evaluations: list[EvaluationPoint] = []
        self._left_out: dict[str, tuple[int, str]] = {}
        self._noted: list[Incident] = []
        self._noted_all = False
        """There were more than are kept."""
        self._merges: list[MergePoint] = []
        self._samples: list[Sample] = []
        self.sample_seconds = _SAMPLE_SECONDS
        """Least time between two samples; doubled whenever there are too many."""
        self._merges_seen, self._merge_stride = 0, 1
        self._asks: dict[tuple[int, int], _Ask] = {}
        self.notes: list[str] = []
        """For the reader, on gaps in the record."""
        self._recoveries: list[RecoveryPoint] = []
        self.bytes_by_region: tuple[RegionBytes, ...] = ()
        """At the end of the run."""

    def take(self, header: TapeHeader, lines: Iterable[TapeEntry | Torn]) -> None:
        """Read the tape of one epoch: its header, and the lines after it.

        Raises:
            TapeError: the tape was changed.
            SnapshotError: it does not begin with a state of this job.
        """
        job = DiLoCoJob.model_validate(header.job)
        engine = engine_of(header, EngineOptions.from_job(job, self._layout))
        self.begins(engine, header.now, self._clock.seconds(header.started_at))
        for entry in lines:
            if isinstance(entry, Torn):
                text = f"the last line of {entry.file.name} is incomplete: the syncer was killed while writing it"
                self.notes.append(text)
                break
            engine.step(entry.event, entry.now)
            self.passed(entry.event, entry.actions, entry.now, self._clock.seconds(header.started_at + entry.now))
        self.ends()

    def begins(self, engine: Engine, now: float, seconds: float) -> None:
        """An epoch begins at ``seconds`` of the run, with the engine at ``now``; ``passed`` and ``ends`` follow."""
        self._epoch = _Epoch(engine, now, engine.recoveries.count, dict(self._left_out))
        self._roll_back(engine.view(now))
        self._turned(SYNCER, seconds, Turn.TRAINS)

    def passed(self, event: Event, actions: Sequence[Action], now: float, seconds: float) -> None:
        """The epoch's engine has received an event at ``now``, which is at ``seconds`` of the run."""
        epoch = self._epoch
        epoch.now, epoch.seconds = now, seconds
        if new := epoch.engine.recoveries.count - epoch.recovered:
            if len(self._recoveries) > 2 * _MOST_INCIDENTS:
                del self._recoveries[:-_MOST_INCIDENTS]
            self._recoveries += [RecoveryPoint(seconds, one) for one in epoch.engine.recoveries.latest[-new:]]
            epoch.recovered += new
        self._entry(event, actions, seconds)
        self._note(incidents_noted(actions, seconds, epoch.named))
        if epoch.over is None and any(isinstance(action, Finish) for action in actions):
            epoch.over = now  # figures no longer change once the job is over, as in /status
        if not self._samples or seconds - self._samples[-1].seconds >= self.sample_seconds:
            self._sample(epoch.view(), seconds)
        self._end = max(self._end, seconds)

    def ends(self) -> None:
        """The epoch is over."""
        epoch = self._epoch
        self._view = epoch.view()
        self._known |= {one.id: one for one in self._view.learners}
        for one in self._view.learners:
            if one.left_out:  # counted since this start of the syncer
                before, _ = epoch.left_out_before.get(one.id, (0, ""))
                self._left_out[one.id] = before + one.left_out, one.left_out_reason
        if epoch.seconds:
            self._sample(self._view, epoch.seconds)
        # A later evaluation may decide whether one is credible. A tape without lines has taken no sample.
        doubted = [evaluation.doubted for evaluation in self._view.evaluations][: len(self._evaluations)]
        self._evaluations = [replace(point, doubted=its) for point, its in zip(self._evaluations, doubted, strict=True)]

    def process_changed(self, process: str, seconds: float, ended: str) -> None:
        """A process of a run without a journal has started or, if ``ended`` says why, ended."""
        self._turned(process, seconds, Turn.ENDED if ended else Turn.STARTED)
        if ended:
            self._note([Incident(seconds, process, ended)])

    def _turned(self, process: str, seconds: float, turn: Turn) -> None:
        known = self._turns[process]
        known.append((seconds, turn))
        if len(known) > _MOST_TURNS:
            self._turns[process] = thinned(known)

    def _note(self, incidents: Sequence[Incident]) -> None:
        """Keep these incidents, unless there are too many for a report."""
        room = _MOST_INCIDENTS - len(self._noted)
        self._noted += incidents[:room]
        if len(incidents) > room and not self._noted_all:
            self._noted_all = True
            self.notes.append(f"Incidents are listed up to {incidents[0].seconds:.0f} s: there are too many.")

    def history(self) -> RunHistory:
        """The history of everything read so far."""
        view, every = self._view, [*incidents(self._journal, self._clock), *self._noted]
        return RunHistory(
            job=self._job.metadata.name,
            seconds=self._end,
            phase=view.phase if view else "Waiting",
            phase_reason=view.phase_reason if view else "the syncer has written no tape",
            budget_tokens=view.budget_tokens if view else self._job.spec.training.tokens,
            merged_tokens=view.merged_tokens if view else 0.0,
            syncer_steps=view.syncer_step if view else 0,
            parameters=self._layout.numel,
            merged=view.merged if view else None,
            time=shares_of(view.time_seconds if view else {}),
            learners=self._learners(),
            evaluations=tuple(self._evaluations),
            quorum=view.quorum if view else 0,
            quorum_wanted=view.quorum_wanted if view else 0,
            merges=tuple(self._merges),
            samples=tuple(self._samples),
            incidents=tuple(sorted(every, key=lambda one: one.seconds)),
            syncer_life=spans(self._turns.get(SYNCER, ()), self._end),
            cuts=stretches(self._journal, self._clock, self._end),
            notes=tuple(self.notes),
            bytes_by_region=self.bytes_by_region,
            region_samples=region_samples(self._journal, self._clock),
            measured_links=links_noted(self._journal),
            computing=computing(self._journal),
            recoveries=tuple(self._recoveries),
            faults=faults(self._journal, self._clock),
        )

    def _roll_back(self, start: EngineStatus) -> None:
        """Drop what came after the checkpoint from which a killed syncer resumed, as it was done again."""
        self._asks.clear()
        missing = start.evaluations[len(self._evaluations) :]
        self._evaluations = self._evaluations[: len(start.evaluations)]
        self._evaluations += [_evaluation(0.0, one) for one in missing]

    def _learners(self) -> tuple[LearnerHistory, ...]:
        histories = []
        for learner in dict.fromkeys((*self._job.spec.learner_ids, *self._known)):
            known, life = self._known.get(learner) or _unseen(learner), spans(self._turns.get(learner, ()), self._end)
            left_out, reason = self._left_out.get(learner, (0, ""))
            of_status = LearnerHistory.of(known, life, self._processes.get(learner, 1))
            losses, blocked = tuple(self._losses[learner]), tuple(self._blocked[learner])
            histories.append(
                replace(of_status, losses=losses, blocked=blocked, left_out=left_out, left_out_reason=reason)
            )
        return tuple(histories)

    def _entry(self, event: Event, actions: Sequence[Action], seconds: float) -> None:
        self._event(event, seconds)
        for action in actions:
            if isinstance(action, AskFragment):
                ask = self._asks.setdefault((action.fragment, action.version), _Ask(seconds))
                ask.asked.add(action.learner)
            elif isinstance(action, Merge) and action.members:
                ask = self._asks.setdefault((action.fragment, action.version), _Ask(seconds))
                ask.members = len(action.members)
                ask.behind = max(action.version - 1 - member.base_version for member in action.members)
            elif isinstance(action, Admit):
                self._turned(action.learner, seconds, Turn.LOST)

    def _event(self, event: Event, seconds: float) -> None:
        if isinstance(event, StepReported):
            self._recent[event.learner].append(event.loss)
            blocked = event.spent.blocked_seconds - self._blocked_before.get(event.learner, 0.0)
            self._blocked_before[event.learner] = event.spent.blocked_seconds
            if blocked >= _BLOCKED_SECONDS:
                end = max(0.0, seconds - event.step_seconds)
                self._blocked[event.learner].append(Stretch(max(0.0, end - blocked), end))
                self._thin_blocked(event.learner)
        elif isinstance(event, LearnerReady):
            self._turned(event.learner, seconds, Turn.TRAINS)
        elif isinstance(event, LearnerLeft):
            self._turned(event.learner, seconds, Turn.LOST if self._epoch.over is None else Turn.OVER)
        elif isinstance(event, Merged):
            self._merged(event, seconds)

    def _merged(self, event: Merged, seconds: float) -> None:
        ask = self._asks.pop((event.fragment, event.version), None)
        self._merges_seen += 1
        if ask is not None and self._merges_seen % self._merge_stride == 0:
            if len(self._merges) >= _MOST_POINTS:
                del self._merges[1::2]
                self._merge_stride *= 2
            self._merges.append(
                MergePoint(
                    seconds=seconds,
                    fragment=event.fragment,
                    version=event.version,
                    members=ask.members,
                    asked=len(ask.asked),
                    waited_seconds=seconds - ask.opened,
                    versions_behind=ask.behind,
                )
            )

    def _thin_blocked(self, learner: str) -> None:
        """Keep the longer half of too many waits: the report draws the longest."""
        waits = self._blocked[learner]
        if len(waits) > _MOST_POINTS:
            longest = sorted(waits, key=lambda stretch: stretch.start - stretch.end)[: _MOST_POINTS // 2]
            self._blocked[learner] = sorted(longest, key=lambda stretch: stretch.start)

    def _sample(self, view: EngineStatus, seconds: float) -> None:
        if len(self._samples) >= _MOST_POINTS:
            del self._samples[1::2]
            for points in self._losses.values():
                del points[1::2]
            self.sample_seconds *= 2
        self._samples.append(Sample.of(seconds, view.merged_tokens, view.time_seconds))
        for learner, losses in self._recent.items():
            if losses:
                self._losses[learner].append(LossPoint(seconds, view.merged_tokens, sum(losses) / len(losses)))
                losses.clear()
        for evaluation in view.evaluations[len(self._evaluations) :]:
            self._evaluations.append(_evaluation(seconds, evaluation))


def _evaluation(seconds: float, one: EvaluationStatus) -> EvaluationPoint:
    loss = nan if one.loss is None else one.loss
    return EvaluationPoint(seconds, one.tokens, loss, one.final, one.doubted, one.learner)


def _unseen(learner: str) -> LearnerStatus:
    return LearnerStatus(
        id=learner,
        state=LearnerState.ABSENT,
        steps=0,
        tokens=0,
        merged_tokens=0.0,
        blocked_fraction=0.0,
        restarts=0,
    )
