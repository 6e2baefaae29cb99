import pytest

from diloco.local.restarts import EndedProcess, Verdict, after_learner_exit, after_syncer_exit
from diloco.runtime.process.exits import how_it_ended


def record(
    code: int,
    *,
    line: str = "why",
    restarts: int = 0,
    early_exits: int = 0,
    by_chaos: bool = False,
    early: bool = False,
) -> EndedProcess:
    return EndedProcess(code, line, restarts, early_exits, by_chaos, early)


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (record(0), Verdict.DONE),
        (record(0, early=True), Verdict.RESTART),
        (record(1), Verdict.RESTART),
        (record(-9), Verdict.RESTART),
        (record(2), Verdict.FAIL),
        (record(3), Verdict.GIVE_UP),
        (record(1, early_exits=4), Verdict.RESTART),
        (record(1, early_exits=5), Verdict.GIVE_UP),
    ],
)
def test_a_learner_is_restarted_unless_that_cannot_help(ended: EndedProcess, verdict: Verdict) -> None:
    assert after_learner_exit(ended, None).verdict is verdict


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (record(0), Verdict.DONE),
        (record(0, early=True), Verdict.RESTART),
        (record(4, early=True), Verdict.DONE),
        (record(1), Verdict.RESTART),
        (record(-9, early_exits=4), Verdict.RESTART),
        (record(2), Verdict.FAIL),
        (record(2, restarts=1, early_exits=1), Verdict.RESTART),
        (record(2, restarts=5, early_exits=5), Verdict.FAIL),
        (record(1, early_exits=5), Verdict.FAIL),
    ],
)
def test_the_syncer_is_restarted_unless_that_cannot_help(ended: EndedProcess, verdict: Verdict) -> None:
    assert after_syncer_exit(ended).verdict is verdict


def test_one_restart_beyond_the_policy_tells_the_syncer_of_the_failure() -> None:
    assert after_learner_exit(record(-9, restarts=1), 1).verdict is Verdict.RESTART
    given_up = after_learner_exit(record(-9, restarts=2), 1)
    assert given_up.verdict is Verdict.GIVE_UP
    assert "maxRestartsPerLearner is 1" in given_up.reason
    assert after_learner_exit(record(2, line="its own line"), None).reason == "its own line"


def test_only_a_process_that_does_not_come_up_waits_ever_longer() -> None:
    delays = [after_syncer_exit(record(1, early_exits=count)).delay_seconds for count in range(5)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_a_process_that_was_killed_on_purpose_comes_back_at_once() -> None:
    assert after_learner_exit(record(-9, early_exits=1, by_chaos=True), None).delay_seconds == 0.0


def test_endings_are_told_in_words() -> None:
    assert (how_it_ended(-9), how_it_ended(1), how_it_ended(-250)) == ("SIGKILL", "exit code 1", "signal 250")
