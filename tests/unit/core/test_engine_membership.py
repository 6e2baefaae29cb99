"""Membership: incarnations, fencing, leases, stalled learners, restarts, giving up."""

from dataclasses import replace

import pytest

from diloco.core.actions import Admit, AskFragment, Discard, Fence, Finish, Merge, Note, Refusal, Refuse
from diloco.core.events import Evaluated, LearnerAlive, LearnerJoined, LearnersPlanned
from diloco.core.options import Rules
from tests.support.engine_script import Script, name, of, only, options


def refusals(actions: list[object]) -> list[Refusal]:
    return [action.refusal for action in actions if isinstance(action, Fence | Refuse)]


def test_each_join_gets_an_incarnation_of_its_own() -> None:
    script = Script(options(2), epoch=3)
    first, second = only(script.join(0), Admit), only(script.join(1), Admit)
    assert first.incarnation != second.incarnation
    assert {first.incarnation // 1_000_000, second.incarnation // 1_000_000} == {3}


def test_an_unknown_learner_is_refused() -> None:
    script = Script(options(1))
    refused = only(script.do(LearnerJoined("there/pool/0", "process", (), 0, 0)), Refuse)
    assert (refused.refusal, refused.reason) == (Refusal.UNKNOWN_LEARNER, "the job has no learner 'there/pool/0'")


def test_a_second_process_with_the_same_id_takes_over() -> None:
    script = Script(options(1))
    script.start(0)
    before = script.incarnations[0]
    actions = script.join(0, "another")
    fence = only(actions, Fence)
    assert (fence.incarnation, fence.refusal) == (before, Refusal.SUPERSEDED)
    assert only(actions, Admit).incarnation > before


def test_the_process_that_was_superseded_cannot_come_back() -> None:
    script = Script(options(1))
    script.start(0)
    script.join(0, "another")
    assert only(script.join(0), Refuse).refusal == Refusal.SUPERSEDED
    assert script.engine.view(script.now).learners[0].restarts == 1


def test_nothing_from_a_fenced_incarnation_counts() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0)
    ask = script.asks[0, 0]
    script.join(0, "another")
    assert of(script.push(0, 0, incarnation=ask.incarnation), Discard)
    assert script.do(LearnerAlive(name(0), ask.incarnation)) == []


def test_a_process_that_lost_its_link_comes_back_without_loading() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.leave(0)
    admitted = only(script.join(0, versions=(0, 0, 0, 0)), Admit)
    assert admitted.load == ()
    assert script.engine.view(script.now).learners[0].restarts == 0


@pytest.mark.parametrize("versions", [(), (0,), (0, 0, 0, 0, 0)])
def test_versions_of_another_model_are_as_good_as_none(versions: tuple[int, ...]) -> None:
    script = Script(options(1))
    assert only(script.join(0, versions=versions), Admit).load == (0, 1, 2, 3)


def test_only_what_is_too_old_is_loaded_again() -> None:
    script = Script(options(1))
    script.start(0)
    for _ in range(12):
        for ask in of(script.step(0), AskFragment):
            for merge in of(script.push(0, ask.fragment), Merge):
                script.merge_done(merge)
    script.leave(0)
    versions = list(script.engine.view(script.now).versions)
    assert versions == [3, 3, 3, 3]
    assert only(script.join(0, versions=(3, 2, 1, 0)), Admit).load == (2, 3)


def test_a_restarted_learner_goes_on_at_the_furthest_position_known() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0, 130)
    script.leave(0)
    admitted = only(script.join(0, "restarted", steps=100, data_position=100), Admit)
    assert (admitted.steps, admitted.data_position) == (130, 130)
    assert admitted.load == (0, 1, 2, 3)


def test_silence_beyond_the_lease_is_a_loss() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(0)
    script.step(1)
    for _ in range(12):
        script.step(0)
        script.wait(1.0)
    fence = script.all(Fence)[0]
    assert (fence.learner, fence.refusal) == (name(1), Refusal.LEASE_EXPIRED)
    assert "its lease is 10.0 s" in fence.reason


def test_a_frozen_process_that_wakes_up_rejoins() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0)
    script.wait(30.0)
    assert refusals([action for _, action in script.log]) == [Refusal.LEASE_EXPIRED]
    assert only(script.join(0, versions=(0, 0, 0, 0)), Admit).load == ()


def test_leases_stretch_with_slow_steps() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0, seconds=30.0)
    script.wait(299.0)
    assert not script.all(Fence)
    script.wait(30.0)
    assert script.all(Fence)


def test_the_first_step_may_take_as_long_as_start_up_may() -> None:
    script = Script(options(1))
    script.start(0)
    script.wait(59.0)
    assert not script.all(Fence)
    script.wait(10.0)
    assert script.all(Fence)


def test_heartbeats_are_no_participation() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(0)
    script.step(1)
    for _ in range(15):
        script.step(0)
        script.do(LearnerAlive(name(1), script.incarnations[1]))
        script.wait(1.0)
    assert not script.all(Fence)
    assert script.all(Note, lambda note: note.subject == "LearnerStalled")[0].learner == name(1)
    # The round does not wait for it: the answer of the one that trains closes it.
    fragment = max(script.asks[0, p].version * 0 + p for _, p in script.asks if (0, p) in script.asks)
    assert of(script.push(0, fragment), Merge)


def test_a_stalled_learner_takes_part_again_with_its_next_step() -> None:
    script = Script(options(1))
    script.start(0)
    script.do(Evaluated(name(0), script.incarnations[0], 0, 2.0, exact=True))
    script.step(0)
    for _ in range(15):
        script.do(LearnerAlive(name(0), script.incarnations[0]))
        script.wait(1.0)
    assert script.engine.view(script.now).learners[0].state == "Stalled"
    assert "makes steps again" in script.step(0)[0].reason  # type: ignore[union-attr]


def test_a_job_that_was_stopped_and_goes_on_counts_no_restarts() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.leave(0, clean=True)
    again = Script(options(2), epoch=2, saved=script.engine.snapshot(script.now))
    again.join(0, "new")
    again.join(1, "new too")
    # The second had not left when the syncer stopped: it was lost.
    assert [learner.restarts for learner in again.engine.view(again.now).learners] == [0, 1]


def test_a_learner_that_was_evicted_again_and_again_is_not_given_up() -> None:
    script = Script(options(1, max_restarts=0))
    script.start(0)
    for life in range(3):
        script.leave(0, clean=True)
        admitted = only(script.join(0, f"life {life}"), Admit)
        assert admitted.reason == "restarted after leaving, loads the model"
    assert script.engine.view(script.now).learners[0].restarts == 0


def test_a_process_that_is_lost_after_an_eviction_is_a_restart() -> None:
    script = Script(options(1, max_restarts=0))
    script.start(0)
    script.leave(0, clean=True)
    script.join(0, "second")
    script.leave(0)
    assert only(script.join(0, "third"), Refuse).refusal == Refusal.GIVEN_UP


def test_a_learner_that_is_lost_with_its_pod_is_not_restarted() -> None:
    script = Script(options(1, max_restarts=0))
    script.join(0, "pod-1/a")
    for life in range(2, 5):
        script.leave(0)
        admitted = only(script.join(0, f"pod-{life}/a"), Admit)
        assert admitted.reason == "restarted in another pod, loads the model"
    # Also if the syncer was killed meanwhile.
    again = Script(options(1, max_restarts=0), epoch=2, saved=script.engine.snapshot(script.now))
    assert only(again.join(0, "pod-5/a"), Admit).reason == "restarted in another pod, loads the model"
    assert again.engine.view(again.now).learners[0].restarts == 0
    # In its own pod it has failed.
    again.leave(0)
    assert only(again.join(0, "pod-5/b"), Refuse).refusal == Refusal.GIVEN_UP


@pytest.mark.parametrize(("earlier", "later"), [("a", "pod-1/b"), ("pod-1/a", "b"), ("a", "b"), ("pod-1/a", "pod-1/b")])
def test_a_process_whose_pod_is_the_same_or_not_told_is_restarted(earlier: str, later: str) -> None:
    script = Script(options(1))
    script.join(0, earlier)
    script.leave(0)
    assert only(script.join(0, later), Admit).reason == "restarted (restart 1), loads the model"


def test_by_the_first_rules_a_learner_that_had_left_was_restarted() -> None:
    script = Script(replace(options(1), rules=Rules.ARRIVED))
    script.start(0)
    script.leave(0, clean=True)
    assert only(script.join(0, "new"), Admit).reason == "restarted (restart 1), loads the model"


def test_restarts_beyond_the_policy_give_a_learner_up() -> None:
    script = Script(options(2, max_restarts=1))
    script.start(0, 1)
    script.leave(0)
    assert of(script.join(0, "second"), Admit)
    script.leave(0)
    assert only(script.join(0, "third"), Refuse).refusal == Refusal.GIVEN_UP
    assert only(script.join(0, "fourth"), Refuse).refusal == Refusal.GIVEN_UP
    assert not script.engine.view(script.now).finished


def test_a_job_below_its_minimum_of_learners_fails() -> None:
    script = Script(options(2, max_restarts=0, minimum_learners=2))
    script.start(0, 1)
    script.leave(0)
    finish = only(script.join(0, "second"), Finish)
    assert not finish.complete
    assert "minimumLearners is 2" in finish.reason


@pytest.mark.parametrize("clean", [True, False])
def test_a_learner_that_left_is_told_apart_from_one_that_was_lost(clean: bool) -> None:
    script = Script(options(1))
    script.start(0)
    assert only(script.leave(0, clean=clean), Note).reason == ("left" if clean else "its connection broke")


def test_whoever_is_fenced_is_not_waited_for() -> None:
    script = Script(options(3))
    script.start(0, 1, 2)
    for index in range(3):
        script.step(index)
    script.push(0, 0)
    assert not of(script.push(1, 0), Merge)
    # The same process again: the session that got the request is over.
    merge = only(script.join(2), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1)]


def test_versions_that_this_syncer_has_not_made_are_loaded_anew() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.leave(0)
    assert only(script.join(0, versions=(0, 1, 0, 2)), Admit).load == (1, 3)


def test_a_new_process_is_measured_anew_and_one_that_lost_its_link_is_not() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0, seconds=3.0)
    script.leave(0)
    script.join(0, versions=(0, 0, 0, 0))
    assert script.engine.view(script.now).learners[0].step_seconds == 3.0
    script.join(0, "another")
    assert script.engine.view(script.now).learners[0].step_seconds is None


def test_the_time_of_a_given_up_learner_stops_once_it_is_not_planned() -> None:
    script = Script(options(2, max_restarts=0))
    script.start(0, 1)
    script.wait(3.0)
    script.do(LearnersPlanned((name(1),)))
    script.wait(4.0)
    assert only(script.join(0, "another"), Refuse).refusal == Refusal.GIVEN_UP
    script.wait(20.0)
    assert script.engine.snapshot(script.now)["learners"][name(0)]["allotted_seconds"] == 7.0


def test_a_learner_that_was_never_waited_for_has_missed_nothing() -> None:
    script = Script(options(1))
    assert not script.engine.view(script.now).learners[0].missed
