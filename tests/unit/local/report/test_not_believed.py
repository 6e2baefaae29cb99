"""What a run's history and report say of what the syncer did not believe: outer gradients, evaluations, learners."""

import pytest

from diloco.core.engine.actions import Action, Admit, Evaluate, Merge
from diloco.core.engine.events import (
    Evaluated,
    FragmentApplied,
    LearnerJoined,
    LearnerReady,
    LeftOut,
    Merged,
    StepReported,
)
from diloco.core.fragments import Layout
from diloco.local.report.history import RunHistory
from diloco.local.report.html import render_report
from diloco.local.report.summary import closing_table, summarize
from diloco.runtime.journal import Entry
from diloco.spec import DiLoCoJob, parse_job
from tests.support.drawn import drawn
from tests.support.one_learner_run import JOB, LEARNER, OneLearner, history_of


class Spoiler(OneLearner):
    """Its outer gradients are left out, its evaluations are doubted, and another learner is given up."""

    def __init__(self, job: DiLoCoJob, layout: Layout) -> None:
        super().__init__(job, layout)
        self.orders: list[Evaluate] = []
        self.other = 0

    def evaluate(self) -> None:
        self.tell(Evaluated(LEARNER, self.incarnation, self.orders.pop(0).evaluation, 0.01, exact=True))

    def answer(self, action: Action) -> None:
        match action:
            case Merge():
                left_out = (LeftOut(LEARNER, f"it is {action.version + 9} times as large"),)
                self.tell(Merged(action.fragment, action.version, "d", 0.01, left_out=left_out))
                self.tell(FragmentApplied(LEARNER, self.incarnation, action.fragment, action.version))
            case Evaluate() if action.learner == LEARNER:
                self.orders.append(action)
            case Evaluate():
                pass  # the other one leaves before it answers
            case Admit() if action.learner != LEARNER:
                self.other = action.incarnation
            case _:
                super().answer(action)


@pytest.fixture
def spoiled(layout: Layout, journal: list[Entry]) -> RunHistory:
    job = parse_job(JOB.replace("overlap: 1}", "overlap: 1, quorum: 2}\n  failurePolicy: {maxRestartsPerLearner: 0}"))
    world = Spoiler(job, layout)
    world.tell(LearnerJoined("east/a/1", "other", (), 0, 0))
    world.train(2)
    world.tell(LearnerReady("east/a/1", world.other))
    world.tell(StepReported("east/a/1", world.other, 1, 10, 0.9, 4.0, 2))
    world.evaluate()
    world.now += 1.0
    world.tell(LearnerJoined("east/a/1", "another process", (), 0, 0))
    world.evaluate()
    for step in (3, 4, 5):
        world.now += 1.0
        world.tell(StepReported(LEARNER, world.incarnation, step, 10 * step, 0.9, 4.0, 2 * step))
    return history_of(job, layout, world, journal)


def test_what_is_not_believed_and_the_quorum_in_force_are_told(spoiled: RunHistory) -> None:
    learner, merges = spoiled.learners[0], spoiled.syncer_steps
    assert merges > 1
    assert learner.left_out == merges
    assert learner.left_out_reason.endswith("times as large")
    assert [evaluation.doubted for evaluation in spoiled.evaluations] == [True, True]
    assert spoiled.loss_end is None, "not known"
    assert (spoiled.quorum, spoiled.quorum_wanted) == (1, 2)
    told = [
        (one.process, one.text.partition(":")[0]) for one in spoiled.incidents if one.process in ("syncer", LEARNER)
    ]
    assert told == [
        (LEARNER, "its evaluation is in doubt"),
        ("syncer", "the quorum follows"),
        (LEARNER, "left out of a merge for the first time"),
        (LEARNER, "its evaluation is in doubt"),
    ]


def test_report_summary_and_closing_table_show_what_is_not_believed(spoiled: RunHistory) -> None:
    page = render_report(spoiled, "")
    assert "0.0100 (in doubt)" in page
    assert f"<td>{spoiled.syncer_steps}, most recently: it is" in page
    assert "The quorum was 1 at the end: only that many learners were left; sync.quorum is 2." in page
    summary = summarize(spoiled)
    assert [one["doubted"] for one in summary["evaluations"]] == [True, True]
    assert [one["left_out"] for one in summary["learners"]] == [spoiled.syncer_steps, 0]
    assert (summary["quorum"], summary["quorum_wanted"]) == (1, 2)
    text = drawn(closing_table(spoiled), 140)
    assert f"{LEARNER}, of {spoiled.syncer_steps} merges, most recently: it is" in text
    assert "1 at the end" in text
    assert "0.010" in text
