import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from diloco.core.actions import Admit
from diloco.core.engine import Engine, EngineOptions
from diloco.core.events import LearnerJoined, LearnerReady, StepReported
from diloco.core.time_class import TimeClass
from diloco.core.view import EngineView, EvaluationView
from diloco.spec.syncer_status import CheckpointStatus, SyncerStatus
from diloco.syncer.reporting.status_builder import Reporter, StoredState
from tests.support.syncer_process import SmallJob

CHECKPOINT = CheckpointStatus(newest="000001", age_seconds=None, failures=0, problem="")
STORED = StoredState(checkpoint=CHECKPOINT, tape_problem="", model_exported=False)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    job = SmallJob(tmp_path)
    engine = Engine(EngineOptions.from_job(job.job, job.layout), 4)
    for index, loss in enumerate((2.0, math.nan)):
        name = f"here/cpu/{index}"
        (admitted,) = [a for a in engine.step(LearnerJoined(name, "x", (), 0, 0), 0.0) if isinstance(a, Admit)]
        engine.step(LearnerReady(name, admitted.incarnation), 0.0)
        engine.step(StepReported(name, admitted.incarnation, 1, 64, 0.5, 0.25, loss, 4), 1.0)
    return engine


def status(engine: Engine, now: float, reporter: Reporter | None = None) -> SyncerStatus:
    return (reporter or Reporter("small", 4)).status(engine.view(now), now, STORED)


def test_the_status_is_plain_json_even_where_a_loss_is_none(engine: Engine) -> None:
    told = json.loads(status(engine, 2.0).model_dump_json(), parse_constant=pytest.fail)
    assert (told["job"], told["epoch"], told["phase"]) == ("small", 4, "Training")
    assert told["train_loss"] == 2.0
    assert [learner["loss"] for learner in told["learners"]] == [2.0, None]
    assert told["seconds_left"] is None
    assert SyncerStatus.model_validate(told) == status(engine, 2.0)


def test_a_learner_shows_what_it_does_and_what_held_it_up(engine: Engine) -> None:
    reporter = Reporter("small", 4)
    reporter.sample(engine.view(0.0), 0.0)
    incarnation = engine.view(1.0).learners[0].incarnation
    engine.step(StepReported("here/cpu/0", incarnation, 2, 128, 0.5, 0.25, 1.5, 8), 2.0)
    reporter.sample(engine.view(2.0), 2.0)
    learner = status(engine, 2.5, reporter).learners[0]
    assert learner.tokens_per_second == 32.0
    assert learner.blocked_fraction == pytest.approx(0.5 / 2.5)
    assert (learner.state, learner.steps, learner.last_heard_seconds) == ("Training", 2, 0.5)


def test_the_time_given_is_told_by_class_and_adds_up(engine: Engine) -> None:
    told = status(engine, 3.0)
    learner = told.learners[0]
    assert learner.time_seconds["evaluating"] == pytest.approx(2.0)
    assert learner.time_seconds["pending"] == pytest.approx(0.5)
    assert learner.time_seconds["between_steps"] == pytest.approx(0.25)
    assert learner.time_seconds["unexplained"] == pytest.approx(0.25)
    assert sum(learner.time_seconds.values()) == pytest.approx(3.0)
    assert sum(told.time_seconds.values()) == pytest.approx(6.0)


def test_one_that_never_came_was_never_heard(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    learner = status(Engine(EngineOptions.from_job(job.job, job.layout), 4), 9.0).learners[0]
    assert (learner.state, learner.last_heard_seconds, learner.blocked_fraction) == ("Absent", None, 0.0)


def test_who_is_left_out_and_the_quorum_in_force_are_told(engine: Engine) -> None:
    view = engine.view(2.0)
    first, second = view.learners
    spoilt = replace(
        second, left_out=3, left_out_reason="it is 9 times as large", left_out_now="it is 5 times as large"
    )
    told = Reporter("small", 4).status(
        replace(view, learners=(first, spoilt), quorum=1, quorum_wanted=2),
        2.0,
        STORED,
    )
    assert [one.left_out_now for one in told.learners] == ["", "it is 5 times as large"]
    assert (told.quorum, told.quorum_wanted) == (1, 2)


def reporter_of(view: EngineView) -> Reporter:
    """One that has seen 5 tokens merged in 10 s, up to those of ``view``."""
    reporter = Reporter("small", 4)
    reporter.sample(replace(view, merged_tokens=view.merged_tokens - 5.0), 0.0)
    reporter.sample(view, 10.0)
    return reporter


def test_the_time_left_is_what_the_rest_takes_at_that_rate(engine: Engine) -> None:
    view = replace(engine.view(10.0), merged_tokens=90.0, budget_tokens=100)
    told = reporter_of(view).status(view, 10.0, STORED)
    assert (told.tokens_per_second, told.seconds_left) == (0.5, 20.0)
    more = replace(view, merged_tokens=101.0)  # a merge may bring more than was wanted
    assert reporter_of(more).status(more, 10.0, STORED).seconds_left == 0.0


def test_a_job_that_is_over_has_no_rate_and_no_time_left(engine: Engine) -> None:
    view = replace(engine.view(10.0), merged_tokens=90.0, budget_tokens=100, finished=True)
    told = reporter_of(view).status(view, 10.0, STORED)
    assert (told.tokens_per_second, told.seconds_left) == (0.0, 0.0)


def test_the_training_loss_is_the_mean_of_those_that_train(engine: Engine) -> None:
    view = engine.view(2.0)
    first, second = view.learners
    other = replace(second, loss=3.0)
    absent = replace(first, id="here/cpu/2", loss=9.0, state="Absent")
    told = Reporter("small", 4).status(replace(view, learners=(first, other, absent)), 2.0, STORED)
    assert told.train_loss == 2.5


def test_the_evaluation_shown_is_the_latest_that_is_credible(engine: Engine) -> None:
    found = [(1.0, 5.0, False), (2.0, 4.0, False), (3.0, 3.0, False), (4.0, 0.1, True)]
    evaluations = tuple(
        EvaluationView(100, loss, at_seconds, final=False, doubted=doubted) for at_seconds, loss, doubted in found
    )
    view = engine.view(2.0)
    told = Reporter("small", 4).status(replace(view, evaluations=evaluations), 2.0, STORED)
    assert told.eval_loss == 3.0
    assert [(one.seconds, one.loss, one.doubted) for one in told.evaluations] == found
    assert Reporter("small", 4).status(replace(view, evaluations=()), 2.0, STORED).eval_loss is None


def test_a_learner_that_does_not_train_has_no_speed(engine: Engine) -> None:
    view = engine.view(2.0)
    first, second = view.learners
    reporter = reporter_of(replace(view, learners=(first,)))
    told = reporter.status(replace(view, learners=(replace(first, state="Stalled"), second)), 10.0, STORED)
    assert [one.tokens_per_second for one in told.learners] == [0.0, 0.0]


@pytest.mark.parametrize(("blocked", "given", "share"), [(0.25, 0.5, 0.5), (3.0, 2.0, 1.0), (0.0, 0.0, 0.0)])
def test_the_share_of_waiting_is_never_more_than_all(
    engine: Engine, blocked: float, given: float, share: float
) -> None:
    view = engine.view(2.0)
    learner = replace(view.learners[0], blocked_seconds=blocked, allotted_seconds=given)
    told = Reporter("small", 4).status(replace(view, learners=(learner,)), 2.0, STORED)
    assert told.learners[0].blocked_fraction == share


def test_times_are_told_in_milliseconds_and_only_where_there_are_any(engine: Engine) -> None:
    time = {TimeClass.MERGED: 1.23456, TimeClass.LATE: 0.0004}
    told = Reporter("small", 4).status(replace(engine.view(2.0), time=time), 2.0, STORED)
    assert told.time_seconds == {"merged": 1.235}
