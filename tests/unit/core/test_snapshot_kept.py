"""Every number of a job's state is in its snapshot, and a restarted syncer has it."""

import copy
from typing import Any

import pytest

from diloco.core.events import LearnerJoined
from diloco.core.snapshot import LaterSnapshotError, SnapshotError, fresh, restore, take
from diloco.core.time_class import TimeClass
from diloco.spec.syncer_status import LearnerState, Phase
from tests.support.engine_script import Script, name, options

LEARNER: dict[str, Any] = {
    "instance": "process-0",
    "superseded": ["the-one-before"],
    "joins": 3,
    "left_cleanly": True,
    "restarts": 1,
    "step": 20,
    "tokens": 2000,
    "data_position": 40,
    "loss": 2.5,
    "blocked_seconds": 0.5,
    "pushed_bytes": 4096,
    "merged_tokens": 1500.0,
    "merged_seconds": 15.0,
    "allotted_seconds": 25.0,
    "given_up": False,
    "account": {
        "step": 20,
        "spent": {
            "training": 20.0,
            "skipped": 0.25,
            "paused": 0.5,
            "copying": 0.75,
            "looking": 1.0,
            "evaluating": 1.25,
            "checkpointing": 1.5,
            "loading": 1.75,
        },
        "seconds": dict.fromkeys((one.value for one in TimeClass if one != "rejoining"), 0.0)
        | {"merged": 15.0, "away": 10.0},
    },
}
EVALUATION = {"tokens": 900, "loss": 3.5, "at_seconds": 12.0, "final": False, "doubted": False}
SAVED: dict[str, Any] = {
    "format": 1,
    "phase": "Failed",
    "phase_reason": "too few are left",
    "launched": 9,
    "merges": 8,
    "versions": [3, 2, 1, 2],
    "fragment_tokens": [3000, 2000, 1000, 2000],
    "learners": {name(0): LEARNER, name(1): LEARNER | {"given_up": True, "left_cleanly": False}},
    "evaluations": [EVALUATION, EVALUATION | {"final": True, "doubted": True}],
    "evaluations_ordered": 3,
    "next_evaluation_tokens": 7000,
    "elapsed_seconds": 30.0,
    "quorum_seconds": 0.125,
    "sync_seconds": 0.25,
    "merge_seconds": 0.375,
}
"""What version 1 of the format holds, each value unlike that of a job that has not begun."""


def saved(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(SAVED) | changes


def test_a_snapshot_that_is_restored_and_taken_again_is_the_same() -> None:
    again = take(restore(options(2), 2, saved()), 0.0)
    assert again == saved()
    assert take(restore(options(2), 3, again), 1000.0) == saved(), "whenever it is taken"


def test_every_kind_of_the_stopwatch_is_restored() -> None:
    account = restore(options(2), 2, saved()).learners[name(0)].account
    assert {kind: getattr(account.spent, kind) for kind in LEARNER["account"]["spent"]} == LEARNER["account"]["spent"]
    assert account.accounted_seconds == 25.0


def test_a_kind_that_an_earlier_version_did_not_measure_is_nothing_so_far() -> None:
    earlier = saved()
    del earlier["learners"][name(0)]["account"]["spent"]["copying"]
    assert restore(options(2), 2, earlier).learners[name(0)].account.spent.copying == 0.0


def test_an_evaluation_from_before_doubts_were_kept_is_not_in_doubt() -> None:
    earlier = saved()
    del earlier["evaluations"][0]["doubted"]
    assert [one.doubted for one in restore(options(2), 2, earlier).evaluations] == [False, True]


def test_an_earlier_versions_learner_has_no_more_merged_than_it_was_given() -> None:
    earlier = saved()
    earlier["learners"][name(0)] |= {"account": None, "merged_seconds": 30.0}
    account = restore(options(2), 2, earlier).learners[name(0)].account
    assert account.seconds == {TimeClass.MERGED: 25.0, TimeClass.UNEXPLAINED: 0.0}
    assert (account.accounted_seconds, account.step) == (25.0, 20)


@pytest.mark.parametrize("over", ["Complete", "Failed"])
def test_a_job_that_was_over_stays_over(over: str) -> None:
    state = restore(options(2), 2, saved(phase=over))
    assert (state.phase, state.phase_reason) == (over, "too few are left")


@pytest.mark.parametrize("phase", ["Waiting", "Training", "Evaluating"])
def test_a_job_that_was_not_over_waits_for_its_learners(phase: str) -> None:
    state = restore(options(2), 2, saved(phase=phase))
    assert state.phase == Phase.WAITING
    assert state.phase_reason == "the syncer has restarted; no learner has joined yet"


def test_nobody_is_in_after_a_restart_and_who_was_given_up_stays_so() -> None:
    learners = restore(options(3), 2, saved()).learners
    assert [learners[name(index)].state for index in range(3)] == [
        LearnerState.ABSENT,
        LearnerState.GIVEN_UP,
        LearnerState.ABSENT,
    ]


def test_a_process_that_had_left_is_no_restart_after_two_of_the_syncer() -> None:
    state = restore(options(2), 2, take(restore(options(2), 2, saved(phase="Training")), 0.0))
    script = Script(options(2), epoch=3, saved=take(state, 0.0))
    script.do(LearnerJoined(name(0), "another", (), 20, 40))
    assert script.engine.view(script.now).learners[0].restarts == 1


def test_a_job_that_has_not_begun_has_nothing() -> None:
    state = fresh(options(2), 1)
    assert state.versions == state.fragment_tokens == [0, 0, 0, 0]
    assert list(state.learners) == sorted(state.planned) == [name(0), name(1)]
    assert (state.in_flight.least, state.in_flight.most, state.in_flight.allowed) == (2, 2, 2)
    assert fresh(options(2, overlap_limit=3), 1).in_flight.most == 3


@pytest.mark.parametrize("field", ["versions", "fragment_tokens"])
def test_a_snapshot_of_another_number_of_fragments_is_refused(field: str) -> None:
    with pytest.raises(SnapshotError, match=f"engine snapshot: {field}: 3 fragments, the job has 4"):
        restore(options(2), 2, saved(**{field: [1, 2, 3]}))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"format": 2}, LaterSnapshotError),
        ({"format": 2, "versions": "many"}, LaterSnapshotError),
        ({"launched": -1}, SnapshotError),
        ({"merges": -1}, SnapshotError),
        ({"phase": "Asleep"}, SnapshotError),
    ],
)
def test_what_a_snapshot_cannot_be_is_told_by_its_field(changes: dict[str, Any], kind: type[SnapshotError]) -> None:
    with pytest.raises(SnapshotError, match=f"engine snapshot: {next(iter(changes))}: ") as refused:
        restore(options(2), 2, saved(**changes))
    assert type(refused.value) is kind
