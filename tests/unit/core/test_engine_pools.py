"""Pools that grow and shrink while the job runs."""

import json

import pytest

from diloco.core.actions import Admit, Finish, Note, Refusal, Refuse
from diloco.core.events import LearnerJoined, LearnersPlanned
from diloco.core.view import LearnerView
from tests.support.engine_script import Script, name, of, only, options


def ids(script: Script) -> list[str]:
    return [learner.id for learner in script.engine.view(script.now).learners]


def one(script: Script, index: int) -> LearnerView:
    return next(learner for learner in script.engine.view(script.now).learners if learner.id == name(index))


def plan(script: Script, count: int) -> list[object]:
    return [*script.do(LearnersPlanned(tuple(name(index) for index in range(count))))]


def join_as(script: Script, learner: str) -> Admit | Refuse:
    (answer,) = [a for a in script.do(LearnerJoined(learner, "process", (), 0, 0)) if isinstance(a, Admit | Refuse)]
    return answer


def test_a_learner_of_a_known_pool_is_let_in_before_it_is_planned() -> None:
    script = Script(options(1))
    script.start(0, 3)
    script.step(3)
    assert ids(script) == [name(0), name(3)]
    assert one(script, 3).steps == 1


@pytest.mark.parametrize(
    "learner",
    ["there/pool/0", "here/other/0", "here/pool/100", "here/pool/01", "here/pool/-1", "here/pool/x", "here/pool/", "0"],
)
def test_no_other_id_is_let_in(learner: str) -> None:
    answer = join_as(Script(options(1)), learner)
    assert isinstance(answer, Refuse)
    assert answer.refusal == Refusal.UNKNOWN_LEARNER
    assert f"the job has no learner {learner!r}" in answer.reason


def test_ids_that_are_joined_at_will_fill_no_memory() -> None:
    script = Script(options(1, pools=("here/pool", "here/other"), maximum_learners=4))
    assert all(isinstance(join_as(script, name(index)), Admit) for index in range(4))
    answer = join_as(script, "here/other/0")
    assert isinstance(answer, Refuse)
    assert ": the limit is 4 learners" in answer.reason
    assert len(ids(script)) == 4


def test_who_joins_after_the_end_leaves_no_trace() -> None:
    script = Script(options(1, budget_tokens=1, max_restarts=0))
    script.start(0)
    script.join(0, "again")
    assert script.all(Finish)
    answer = join_as(script, name(3))
    assert isinstance(answer, Refuse)
    assert answer.refusal == Refusal.FINISHED
    assert ids(script) == [name(0)]


def test_new_learners_are_awaited_and_those_that_never_came_are_forgotten() -> None:
    script = Script(options(2))
    script.start(0)
    note = only(script.do(LearnersPlanned((name(0), name(2)))), Note)
    assert note.reason == "2 learner(s) are planned: 1 more, 1 fewer than before"
    assert ids(script) == [name(0), name(2)]
    assert one(script, 2).state == "Absent"


def test_a_learner_that_is_no_longer_planned_counts_until_it_leaves() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(3.0)
    plan(script, 1)
    script.wait(2.0)
    assert one(script, 1).allotted_seconds == 5.0
    script.leave(1, clean=True)
    assert ids(script) == [name(0)]
    before = script.engine.view(script.now)
    script.step(0)
    script.wait(8.0)
    after = script.engine.view(script.now)
    # Allotted time goes on for one learner, not for two, and the other's work is kept.
    assert after.inner_steps == before.inner_steps + 1
    script.join(1, "back")
    assert one(script, 1).allotted_seconds == 5.0
    script.wait(1.0)
    assert one(script, 1).allotted_seconds == 6.0


def test_a_learner_planned_again_counts_from_then_on_although_it_is_away() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(2.0)
    plan(script, 1)
    script.leave(1)
    script.wait(4.0)
    plan(script, 2)
    script.wait(1.0)
    assert one(script, 1).allotted_seconds == 3.0


def test_one_that_falls_silent_and_is_not_planned_is_withdrawn() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(1)
    plan(script, 1)
    for _ in range(12):
        script.step(0)
        script.wait(1.0)
    assert ids(script) == [name(0)]


def test_one_that_was_given_up_and_scaled_away_does_not_end_the_job() -> None:
    script = Script(options(3, max_restarts=0, minimum_learners=2))
    script.start(0, 1, 2)
    plan(script, 2)
    script.leave(2)
    script.join(2, "again")
    assert not script.all(Finish)
    assert ids(script) == [name(0), name(1)]


def test_the_minimum_is_of_those_that_are_planned() -> None:
    script = Script(options(3, max_restarts=0, minimum_learners=2))
    script.start(0, 1, 2)
    plan(script, 2)
    script.leave(2)
    script.leave(1)
    script.join(1, "again")
    (finish,) = script.all(Finish)
    assert not finish.complete
    assert "1 learner(s) left" in finish.reason


def test_an_epoch_with_more_or_fewer_learners_keeps_what_all_have_done() -> None:
    script = Script(options(2))
    script.start(0, 1, 2)
    for index in range(3):
        script.step(index, count=index + 1)
    script.wait(5.0)
    saved = json.loads(json.dumps(script.engine.snapshot(script.now)))
    smaller = Script(options(1), epoch=2, saved=saved)
    assert ids(smaller) == [name(0)]
    assert smaller.engine.view(smaller.now).inner_steps == 6
    smaller.start(0)
    smaller.wait(1.0)
    assert smaller.engine.snapshot(smaller.now)["learners"][name(1)]["allotted_seconds"] == 5.0
    assert only(smaller.join(2), Admit).steps == 3
    larger = Script(options(5), epoch=2, saved=saved)
    assert len(ids(larger)) == 5
    assert only(larger.join(1), Admit).steps == 2


def test_learners_of_a_pool_that_is_gone_are_left_out() -> None:
    script = Script(options(1, pools=("here/pool", "here/other")))
    script.do(LearnerJoined("here/other/0", "process", (), 7, 0))
    restored = Script(options(1), epoch=2, saved=script.engine.snapshot(script.now))
    assert restored.engine.view(restored.now).inner_steps == 0


def test_after_the_end_nothing_is_planned() -> None:
    script = Script(options(1, max_restarts=0))
    script.start(0)
    script.join(0, "again")
    assert plan(script, 3) == []
    assert not of(script.do(LearnersPlanned(())), Note)


def refused(script: Script, learner: str) -> str:
    return only(script.do(LearnerJoined(learner, "process", (), 0, 0)), Refuse).reason


@pytest.mark.parametrize(
    ("number", "limits_told"),
    [
        ("100", True),
        ("123456789", True),
        ("1234567890", False),  # too long to be read
        ("9" * 5000, False),
        ("01", True),
        ("1_0", False),
        ("\N{ARABIC-INDIC DIGIT THREE}", False),
        ("\N{SUPERSCRIPT TWO}", False),
    ],
)
def test_a_refusal_tells_the_limits_where_the_index_is_a_number(number: str, *, limits_told: bool) -> None:
    reason = refused(Script(options(1)), f"here/pool/{number}")
    assert ("indices of here/pool are 0 to 99" in reason) is limits_told


def test_the_last_index_is_one_below_the_limit() -> None:
    script = Script(options(1))
    assert of(script.do(LearnerJoined(name(99), "process", (), 0, 0)), Admit)
    assert "indices of here/pool are 0 to 99" in refused(script, name(100))


def test_a_plan_that_is_told_again_changes_no_clock() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(2.0)
    script.leave(1)
    for _ in range(2):
        script.wait(1.0)
        note = only(script.do(LearnersPlanned((name(0), name(1)))), Note)
        assert note.reason == "2 learner(s) are planned: 0 more, 0 fewer than before"
    assert [one(script, index).allotted_seconds for index in (0, 1)] == [4.0, 4.0]


def test_one_that_is_in_when_it_is_planned_counts_from_its_join() -> None:
    script = Script(options(1))
    script.start(0, 3)
    script.wait(2.0)
    script.do(LearnersPlanned((name(0), name(3))))
    script.wait(1.0)
    assert one(script, 3).allotted_seconds == 3.0


def test_a_learner_from_before_a_restart_counts_when_planned_again() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(2.0)
    again = Script(options(1), epoch=2, saved=script.engine.snapshot(script.now))
    again.do(LearnersPlanned((name(0), name(1))))
    again.wait(3.0)
    assert [one(again, index).allotted_seconds for index in (0, 1)] == [2.0, 2.0], "no learner has joined yet"
    again.start(0)
    again.wait(1.0)
    assert [one(again, index).allotted_seconds for index in (0, 1)] == [3.0, 3.0]


def test_ids_that_were_planned_and_never_came_take_no_room() -> None:
    script = Script(options(4, pools=("here/pool", "here/other"), maximum_learners=4))
    script.do(LearnersPlanned(tuple(f"here/other/{index}" for index in range(3))))
    assert isinstance(join_as(script, "here/other/3"), Admit)
    assert sorted(script.engine.snapshot(script.now)["learners"]) == [f"here/other/{index}" for index in range(4)]
