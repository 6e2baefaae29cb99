"""The tape of a run with one learner, made by the engine itself, and the history that is read from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Action, Admit, AskFragment, Evaluate, Merge
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import (
    Evaluated,
    Event,
    FragmentApplied,
    FragmentArrived,
    LearnerJoined,
    LearnerReady,
    Merged,
    StepReported,
)
from diloco.core.engine.options import RULES, EngineOptions
from diloco.core.fragments import Layout
from diloco.local.report import record
from diloco.local.report.history import RunHistory
from diloco.local.report.record import Point
from diloco.runtime.journal import Entry
from diloco.spec import DiLoCoJob
from diloco.spec.status.syncer import StoredStatus, SyncerStatus
from diloco.syncer.reporting.curves import Curves
from diloco.syncer.reporting.decisions import Decisions
from diloco.syncer.reporting.status_builder import Reporter
from diloco.tape.reader import TapeEntry, TapeHeader, Torn
from tests.support.small_manifest import SMALL_MANIFEST

START = 1_700_000_000.0
LEARNER = "east/a/0"
JOB = (
    # Its only learner is one of two that are planned.
    SMALL_MANIFEST.replace("interval: 4", "interval: 2, startupSeconds: 1")
    .replace("fragments: 4", "fragments: 2")
    .replace("tokens: 1000, sequenceLength: 16", "tokens: 60, evaluation: {everyTokens: 60}, sequenceLength: 5")
)


@dataclass(frozen=True)
class ScriptedTape:
    """What a syncer would write if one learner made a step a second and everything else took no time."""

    header: TapeHeader
    entries: list[TapeEntry | Torn] = field(default_factory=list)


class OneLearner:
    """Answers whatever the engine orders, as a syncer and one learner would."""

    def __init__(self, job: DiLoCoJob, layout: Layout) -> None:
        self.engine = Engine(EngineOptions.from_job(job, layout), 1)
        header = TapeHeader(
            job=job.model_dump(mode="json", by_alias=True),
            layout=layout.digest,
            epoch=1,
            base_checkpoint="",
            record=False,
            engine={},
            started_at=START + 10,
            rules=RULES,
            tensors=layout.table,
        )
        self.tape = ScriptedTape(header)
        self.points: list[Point] = []
        self._curves, self._decisions = Curves(), Decisions(lambda: START + 10 + self.now)
        self.now = 0.0
        self.incarnation = 0

    def tell(self, event: Event) -> None:
        actions = self.engine.step(event, self.now)
        self.tape.entries.append(
            TapeEntry(Path("000001.jsonl"), len(self.tape.entries), self.now, event, tuple(actions))
        )
        for action in actions:
            self._curves.observe(action, self.now)
            self._decisions.observe(action)
        view = self.engine.view(self.now)
        losses = {one.id: one.loss for one in view.learners if one.loss is not None}
        at = START + 10 + self.now
        self.points.append(Point(1, at, view.merged_tokens, view.time_seconds, losses, self._curves.merge))
        for action in actions:
            self.answer(action)

    def journal(self, above: Sequence[Entry]) -> list[Entry]:
        """The syncer's with that of a supervisor."""
        self._decisions.look(self.engine.view(self.now))
        return sorted((*above, *self._decisions.take()), key=lambda entry: entry.time)

    def answer(self, action: Action) -> None:
        match action:
            case Admit():
                self.incarnation = action.incarnation
            case AskFragment():
                asked = (action.fragment, action.version, action.attempt)
                self.tell(FragmentArrived(LEARNER, self.incarnation, *asked, action.version - 1, 1, 10, 100, "d"))
            case Merge():
                self.tell(Merged(action.fragment, action.version, "d", 0.01))
                self.tell(FragmentApplied(LEARNER, self.incarnation, action.fragment, action.version))
            case Evaluate():
                loss = 2.0 if action.final else 5.0
                self.tell(Evaluated(LEARNER, self.incarnation, action.evaluation, loss, exact=True))

    def train(self, steps: int) -> None:
        self.tell(LearnerJoined(LEARNER, "process", (), 0, 0))
        self.tell(LearnerReady(LEARNER, self.incarnation))
        for step in range(1, steps + 1):
            self.now += 1.0
            spent = TimeSpent(training=0.9 * step, looking=0.1 * step)
            self.tell(StepReported(LEARNER, self.incarnation, step, 10 * step, 0.9, 4.0, 2 * step, spent))


def history_of(job: DiLoCoJob, layout: Layout, world: OneLearner | None, journal: Sequence[Entry]) -> RunHistory:
    """What its syncer and a supervisor with this journal leave; ``world``: None: no learner ever joined."""
    world = world or OneLearner(job, layout)
    return record.history_of(status_of(job, layout, world), world.points, world.journal(journal), None)


def status_of(job: DiLoCoJob, layout: Layout, world: OneLearner) -> SyncerStatus:
    stored = StoredStatus(parameters=layout.numel)
    return Reporter(job.metadata.name, 1).status(world.engine.view(world.now), stored)
