import json
import math
from pathlib import Path

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import StepReported
from diloco.spec.status.engine import EngineStatus, Phase
from diloco.spec.status.syncer import CheckpointStatus, StoredStatus, SyncerStatus
from diloco.syncer.reporting.status_builder import Reporter
from tests.support.job_engine import engine_of
from tests.support.status_of_a_job import changed
from tests.support.syncer_process import SmallJob

CHECKPOINT = CheckpointStatus(newest="000001")
STORED = StoredStatus(checkpoint=CHECKPOINT, tape_problem="")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return engine_of(SmallJob(tmp_path), (2.0, math.nan), TimeSpent(training=0.5, looking=0.25))


def status(engine: Engine, now: float, reporter: Reporter | None = None) -> SyncerStatus:
    return (reporter or Reporter("small", 4)).status(engine.view(now), STORED)


def test_the_status_is_plain_json_even_where_a_loss_is_none(engine: Engine) -> None:
    told = json.loads(status(engine, 2.0).model_dump_json(), parse_constant=pytest.fail)
    assert (told["job"], told["epoch"], told["phase"]) == ("small", 4, "Training")
    assert told["train_loss"] == 2.0
    assert [learner["loss"] for learner in told["learners"]] == [2.0, None]
    assert told["seconds_left"] is None
    assert json.loads(SyncerStatus.model_validate(told).model_dump_json()) == told


def test_a_learner_shows_what_it_does_and_what_held_it_up(engine: Engine) -> None:
    reporter, twice = Reporter("small", 4), TimeSpent(training=1.0, paused=0.5)
    reporter.sample(engine.view(0.0), 0.0)
    incarnation = engine.view(1.0).learners[0].incarnation
    engine.step(StepReported("here/cpu/0", incarnation, 2, 128, 0.5, 1.5, 8, twice), 2.0)
    reporter.sample(engine.view(2.0), 2.0)
    learner = status(engine, 2.5, reporter).learners[0]
    assert learner.tokens_per_second == 32.0
    assert learner.time_seconds[TimeClass.WAITING] == 0.5
    assert (learner.state, learner.steps, learner.last_heard_seconds) == ("Training", 2, 0.5)


def test_one_that_never_came_was_never_heard(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    learner = status(Engine(EngineOptions.from_job(job.job, job.layout), 4), 9.0).learners[0]
    assert (learner.state, learner.last_heard_seconds, learner.allotted_seconds) == ("Absent", None, 0.0)


def reporter_of(view: EngineStatus) -> Reporter:
    """One that has seen 15 tokens merged in 30 s, up to those of ``view``, after a first merge."""
    reporter = Reporter("small", 4)
    for at, less in ((0.0, 20.0), (10.0, 15.0), (40.0, 0.0)):
        reporter.sample(changed(view, merged_tokens=view.merged_tokens - less), at)
    return reporter


def test_the_time_left_is_not_told_before_merging_was_measured(engine: Engine) -> None:
    view = changed(engine.view(10.0), merged_tokens=0.0, budget_tokens=100)
    reporter, left = Reporter("small", 4), []
    for at, merged in ((0.0, 0.0), (60.0, 0.0), (61.0, 1.0), (80.0, 10.0), (91.0, 16.0)):
        view = changed(view, merged_tokens=merged)
        reporter.sample(view, at)
        left.append(reporter.status(view, STORED).seconds_left)
    assert left == [None, None, None, None, pytest.approx(84.0 / 0.5)]


def test_the_time_left_is_what_the_rest_takes_at_that_rate(engine: Engine) -> None:
    view = changed(engine.view(10.0), merged_tokens=90.0, budget_tokens=100)
    told = reporter_of(view).status(view, STORED)
    assert (told.tokens_per_second, told.seconds_left) == (0.5, 20.0)
    more = changed(view, merged_tokens=101.0)  # a merge may bring more than was wanted
    assert reporter_of(more).status(more, STORED).seconds_left == 0.0


def test_a_job_that_is_over_has_no_rate_and_no_time_left(engine: Engine) -> None:
    view = changed(engine.view(10.0), merged_tokens=90.0, budget_tokens=100, phase=Phase.COMPLETE)
    told = reporter_of(view).status(view, STORED)
    assert (told.tokens_per_second, told.seconds_left) == (0.0, 0.0)


def test_a_learner_that_does_not_train_has_no_speed(engine: Engine) -> None:
    view = engine.view(2.0)
    first, second = view.learners
    reporter = reporter_of(changed(view, learners=(first,)))
    told = reporter.status(changed(view, learners=(changed(first, state="Stalled"), second)), STORED)
    assert [one.tokens_per_second for one in told.learners] == [0.0, 0.0]


def test_times_are_told_in_milliseconds_and_only_where_there_are_any(engine: Engine) -> None:
    view = changed(engine.view(2.0), time_seconds={"merged": 1.23456, "late": 0.0004})
    told = json.loads(Reporter("small", 4).status(view, STORED).model_dump_json())
    assert told["time_seconds"] == {"merged": 1.235}
