"""Joins: which learners are admitted with what, and what is known of one that comes back."""

from diloco.core.actions import Admit, AskFragment, Fence, Merge, Refusal
from diloco.core.events import StepReported
from diloco.core.view import LearnerView
from tests.support.engine_script import Script, name, of, only, options


def learner(script: Script, index: int = 0) -> LearnerView:
    return script.engine.view(script.now).learners[index]


def merged(script: Script, times: int) -> None:
    """The first learner alone makes this many steps and merges."""
    for _ in range(times):
        for ask in of(script.step(0), AskFragment):
            if ask.learner == name(0):
                for merge in of(script.push(0, ask.fragment), Merge):
                    script.merge_done(merge)


def test_incarnations_count_the_joins_of_an_epoch() -> None:
    script = Script(options(2), epoch=3)
    admitted = [only(actions, Admit) for actions in (script.join(0), script.join(1), script.join(0))]
    assert [admit.incarnation for admit in admitted] == [3_000_001, 3_000_002, 3_000_003]


def test_an_admission_says_why() -> None:
    script = Script(options(1))
    reasons = [only(script.join(0), Admit).reason]
    script.ready(0)
    script.leave(0)
    reasons.append(only(script.join(0, versions=(0, 0, 0, -1)), Admit).reason)
    reasons.append(only(script.join(0, "second"), Admit).reason)
    reasons.append(only(script.join(0, "third"), Admit).reason)
    script.leave(0, clean=True)
    reasons.append(only(script.join(0, "fourth"), Admit).reason)
    assert reasons == [
        "first join",
        "back after its connection broke, loads 1 of 4 fragments",
        "restarted (restart 1), loads the model",
        "restarted (restart 2), loads the model",
        "restarted after leaving, loads the model",
    ]


def test_a_session_that_is_replaced_is_told_why() -> None:
    script = Script(options(1))
    script.start(0)
    again, another = only(script.join(0), Fence), only(script.join(0, "another"), Fence)
    assert (again.refusal, again.reason) == (Refusal.LEASE_EXPIRED, "the same process has joined again")
    assert (another.refusal, another.reason) == (Refusal.SUPERSEDED, "another process has joined with this id")


def test_a_learners_own_checkpoint_may_be_further_than_what_is_known_here() -> None:
    script = Script(options(1))
    admitted = only(script.join(0, steps=130, data_position=140), Admit)
    assert (admitted.steps, admitted.data_position) == (130, 140)


def test_the_latest_sixteen_processes_of_a_learner_are_remembered() -> None:
    script = Script(options(1))
    for number in range(40):
        script.join(0, f"process {number}")
    remembered = script.engine.snapshot(script.now)["learners"][name(0)]["superseded"]
    assert remembered == [f"process {number}" for number in range(23, 39)]


def test_a_new_process_has_missed_nothing_and_is_asked_without_a_lead() -> None:
    script = Script(options(1))
    script.join(0)
    assert (learner(script).missed, learner(script).lead_steps) == (False, 0)


def test_who_comes_back_with_a_version_of_before_still_lacks_the_latest() -> None:
    script = Script(options(1))
    script.start(0)
    merged(script, times=4)
    script.leave(0)
    assert only(script.join(0, versions=(1, 0, 0, 1)), Admit).load == ()
    script.ready(0)
    assert learner(script).versions_behind == 2


def test_time_in_which_a_learner_waited_adds_up_and_never_shrinks() -> None:
    script = Script(options(1))
    script.start(0)
    for step, blocked_seconds in enumerate((0.25, -5.0, 0.5), start=1):
        script.wait(2.0)
        script.do(StepReported(name(0), script.incarnations[0], step, 100 * step, 1.0, blocked_seconds, 2.0, step))
    assert learner(script).blocked_seconds == 0.75
