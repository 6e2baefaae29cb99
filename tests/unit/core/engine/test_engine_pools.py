"""Pools that grow and shrink while the job runs."""

import json
from dataclasses import replace

import pytest

from diloco.core.engine.actions import (
    Admit,
    AskFragment,
    Broadcast,
    Fence,
    Finish,
    Merge,
    Note,
    NoteKind,
    Refusal,
    Refuse,
)
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import LearnerJoined, LearnersPlanned
from diloco.core.engine.members import pools
from tests.support.engine_script import POOL, Script, members, name, only, options, started


def ids(script: Script) -> list[str]:
    return [learner.id for learner in script.view.learners]


def join_as(script: Script, learner: str) -> Admit | Refuse:
    (answer,) = [a for a in script.do(LearnerJoined(learner, "process", (), 0, 0)) if isinstance(a, Admit | Refuse)]
    return answer


def test_a_learner_of_a_known_pool_is_let_in_before_it_is_planned() -> None:
    script = Script(options(1))
    script.start(0, 3)
    script.step(3)
    assert ids(script) == [name(0), name(3)]
    assert script.learner(3).steps == 1


@pytest.mark.parametrize(
    ("learner", "limits_told"),
    [
        ("there/pool/0", False),
        ("here/other/0", False),
        ("0", False),
        ("here/pool/", False),
        ("here/pool/-1", False),
        ("here/pool/1_0", False),
        ("here/pool/\N{ARABIC-INDIC DIGIT THREE}", False),
        ("here/pool/\N{SUPERSCRIPT TWO}", False),
        ("here/pool/01", True),
        ("here/pool/10000", True),
        ("here/pool/123456789", True),
        ("here/pool/1234567890", False),  # too long to be read
        ("here/pool/" + "9" * 5000, False),
    ],
    ids=lambda value: str(value)[:24],
)
def test_no_other_id_is_let_in_and_limits_are_told_for_an_index(learner: str, *, limits_told: bool) -> None:
    script = Script(options(1))
    answer = join_as(script, learner)
    assert isinstance(answer, Refuse)
    assert answer.refusal == Refusal.UNKNOWN_LEARNER
    assert f"the job has no learner {learner!r}" in answer.reason
    assert ("indices of here/pool are 0 to 9999" in answer.reason) is limits_told
    assert isinstance(join_as(script, name(9999)), Admit)


def test_learners_of_an_added_pool_come_in_those_of_a_removed_one_go() -> None:
    script = started(1)
    script.step(0)
    there = "there/pool/0"
    assert isinstance(join_as(script, there), Refuse)
    script.do(LearnersPlanned((name(0), there), (POOL, "there/pool")))
    assert isinstance(join_as(script, there), Admit)
    fence = only(script.do(LearnersPlanned((there,), ("there/pool",))), Fence)
    assert (fence.learner, fence.refusal) == (name(0), Refusal.UNKNOWN_LEARNER)
    assert members(script.push(0, 0)) == [], "it has no say any more"
    assert isinstance(join_as(script, name(0)), Refuse)
    assert script.engine.view(script.now).inner_steps == 1, "its work counts"
    assert ids(script) == [there]
    again = script.restarted(replace(options(1), learners=(there,), pools=("there/pool",)))
    assert isinstance(join_as(again, name(0)), Refuse)
    assert isinstance(join_as(again, there), Admit)


def test_an_engine_made_from_an_image_knows_the_pools_of_the_latest_plan() -> None:
    script = started(1)
    script.do(LearnersPlanned(("there/pool/0",), ("there/pool",)))
    image = json.loads(json.dumps(script.engine.image()))
    script.engine = Engine.from_image(options(1), 1, image)
    assert isinstance(join_as(script, name(0)), Refuse)
    assert isinstance(join_as(script, "there/pool/7"), Admit)


def test_ids_that_are_joined_at_will_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAXIMUM_LEARNERS", 4)
    script = Script(options(1, pools=("here/pool", "here/other")))
    assert all(isinstance(join_as(script, name(index)), Admit) for index in range(4))
    answer = join_as(script, "here/other/0")
    assert isinstance(answer, Refuse)
    assert ": the limit is 4 learners" in answer.reason
    assert len(ids(script)) == 4


def test_who_joins_after_the_end_leaves_no_trace() -> None:
    script = started(1, budget_tokens=1, max_restarts=0)
    script.join(0, "again")
    assert script.all(Finish)
    answer = join_as(script, name(3))
    assert isinstance(answer, Refuse)
    assert answer.refusal == Refusal.FINISHED
    assert ids(script) == [name(0)]


def test_an_unplanned_learner_trains_and_waits_until_it_is_planned() -> None:
    script = started(2)
    note = only(script.begin(2), Note)
    assert (note.kind, note.learner) == (NoteKind.LEARNER_WAITS, name(2))
    asks = [*script.step(2), *script.step(1), *script.step(0)]
    assert {ask.learner for ask in asks if isinstance(ask, AskFragment)} == {name(0), name(1)}
    assert (script.learner(2).state, script.learner(2).steps) == ("Unplanned", 1)
    told = only(script.merge_done(only([*script.push(0, 0), *script.push(1, 0)], Merge)), Broadcast)
    assert name(2) in {learner for learner, *_ in told.learners}, "it keeps the model"
    script.plan(0, 1, 2)
    assert script.learner(2).state == "Training"
    script.step(0)
    assert (2, 1) in script.asks


def test_unplanned_learners_are_not_part_of_the_quorum() -> None:
    script = started(2, quorum=2, max_restarts=0)
    script.start(2, 3)
    for index in range(4):
        script.step(index)
    assert script.view.quorum == 2
    script.rejoin(1, "again")
    assert script.view.quorum == 1, "the unplanned ones do not take the place of one that was given up"


def test_of_one_that_is_planned_no_longer_nothing_is_awaited() -> None:
    script = started(2)
    script.step(0)
    assert members(script.push(0, 0)) == []
    actions = script.plan(0)
    assert members(actions) == [[name(0)]]
    assert script.learner(1).state == "Unplanned"
    merge = only(actions, Merge)
    script.merge_done(merge)
    script.step(0)
    assert {ask.learner for ask in script.all(AskFragment) if ask.fragment == 1} == {name(0)}


def test_new_learners_are_awaited_and_those_that_never_came_are_forgotten() -> None:
    script = Script(options(2))
    script.start(0)
    note = only(script.plan(0, 2), Note)
    assert note.reason == "2 learner(s) are planned: 1 more, 1 fewer than before"
    assert ids(script) == [name(0), name(2)]
    assert script.learner(2).state == "Absent"


def test_a_learner_that_is_no_longer_planned_counts_until_it_leaves() -> None:
    script = started(2)
    script.wait(3.0)
    script.plan(0)
    script.wait(2.0)
    assert script.learner(1).allotted_seconds == 5.0
    script.leave(1, clean=True)
    assert ids(script) == [name(0)]
    before = script.view
    script.step(0)
    script.wait(8.0)
    after = script.view
    # Allotted time goes on for one learner, not for two, and the other's work is kept.
    assert after.inner_steps == before.inner_steps + 1
    script.join(1, "back")
    assert script.learner(1).allotted_seconds == 5.0
    script.wait(1.0)
    assert script.learner(1).allotted_seconds == 6.0


def test_one_that_falls_silent_and_is_not_planned_is_withdrawn() -> None:
    script = started(2)
    script.step(1)
    script.plan(0)
    for _ in range(12):
        script.step(0)
        script.wait(1.0)
    assert ids(script) == [name(0)]


def test_one_that_was_given_up_and_scaled_away_does_not_end_the_job() -> None:
    script = started(3, max_restarts=0, minimum_learners=2)
    script.plan(0, 1)
    script.leave(2)
    script.join(2, "again")
    assert not script.all(Finish)
    assert ids(script) == [name(0), name(1)]


def test_the_minimum_is_of_those_that_are_planned() -> None:
    script = started(3, max_restarts=0, minimum_learners=2)
    script.plan(0, 1)
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
    smaller = script.restarted(options(1))
    assert ids(smaller) == [name(0)]
    assert smaller.view.inner_steps == 6
    smaller.start(0)
    smaller.wait(1.0)
    assert smaller.engine.snapshot(smaller.now)["learners"][name(1)]["allotted_seconds"] == 5.0
    assert only(smaller.join(2), Admit).steps == 3
    larger = script.restarted(options(5))
    assert len(ids(larger)) == 5
    assert only(larger.join(1), Admit).steps == 2


def test_learners_of_a_pool_that_is_gone_are_left_out() -> None:
    script = Script(options(1, pools=("here/pool", "here/other")))
    script.do(LearnerJoined("here/other/0", "process", (), 7, 0))
    restored = script.restarted(options(1))
    assert restored.view.inner_steps == 0


def test_a_learner_from_before_a_restart_counts_when_planned_again() -> None:
    script = started(2)
    script.wait(2.0)
    again = script.restarted(options(1))
    again.plan(0, 1)
    again.wait(3.0)
    assert [again.learner(index).allotted_seconds for index in (0, 1)] == [2.0, 2.0], "no learner has joined yet"
    again.start(0)
    again.wait(1.0)
    assert [again.learner(index).allotted_seconds for index in (0, 1)] == [3.0, 3.0]


def test_ids_that_were_planned_and_never_came_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAXIMUM_LEARNERS", 4)
    script = Script(options(4, pools=("here/pool", "here/other")))
    script.do(LearnersPlanned(tuple(f"here/other/{index}" for index in range(3)), ("here/pool", "here/other")))
    assert isinstance(join_as(script, "here/other/3"), Admit)
    assert sorted(script.engine.snapshot(script.now)["learners"]) == [f"here/other/{index}" for index in range(4)]
