"""Why processes of a job ended, as lists of its pods show."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diloco_operator.decide.causes.ends import End, Ends
from diloco_operator.decide.observed import PodObserved

SINCE = datetime(2026, 1, 2, 3, tzinfo=UTC)


def at(seconds: float) -> str:
    return (SINCE + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(*containers: dict[str, Any], uid: str = "u", **metadata: Any) -> PodObserved:
    return PodObserved({"metadata": {"uid": uid, **metadata}, "status": {"containerStatuses": list(containers)}}, ())


def ended(code: int = 1, times: int = 1, seconds: float = 5, reason: str = "Error", name: str = "learner") -> Any:
    last = {"exitCode": code, "reason": reason, "finishedAt": at(seconds)}
    return {"name": name, "restartCount": times, "state": {"running": {}}, "lastState": {"terminated": last}}


def disrupted(reason: str, seconds: float = 5) -> PodObserved:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at(seconds)}
    status = {"conditions": [condition], "containerStatuses": [ended()]}
    return PodObserved({"metadata": {"uid": "u", "deletionTimestamp": at(9)}, "status": status}, ())


@pytest.mark.parametrize(
    ("code", "reason", "end"),
    [
        (137, "OOMKilled", End.OUT_OF_MEMORY),
        (137, "Error", End.CRASHED),
        (0, "Completed", End.STOPPED),
        (2, "Error", End.BAD_INPUT),
        (3, "Error", End.REFUSED),
        (6, "Error", End.STUCK),
        (1, "Error", End.CRASHED),
    ],
)
def test_an_exit_code_and_a_reason_are_a_cause(code: int, reason: str, end: End) -> None:
    ends = Ends(SINCE)
    ends.look([pod(ended(code, reason=reason))])
    assert dict(ends.counts) == {end: 1}


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("PreemptionByScheduler", End.PREEMPTED),
        ("DeletionByTaintManager", End.NODE_LOST),
        ("EvictionByEvictionAPI", End.EVICTED),
        ("something new", End.EVICTED),
    ],
)
def test_a_pod_that_is_disrupted_counts_once_and_its_containers_do_not(reason: str, end: End) -> None:
    ends = Ends(SINCE)
    for _ in range(3):
        ends.look([disrupted(reason)])
    assert dict(ends.counts) == {end: 1}


def test_each_end_counts_once_and_those_between_two_looks_too() -> None:
    ends = Ends(SINCE)
    for times in (1, 1, 4, 4):
        ends.look([pod(ended(times=times), ended(times=1, seconds=-60, name="other"))])
    assert dict(ends.counts) == {End.CRASHED: 4}


def test_what_ended_before_the_operator_began_does_not_count() -> None:
    ends = Ends(SINCE)
    ends.look([pod(ended(times=7, seconds=-60))])
    assert ends.counts.total() == 0
    ends.look([pod(ended(times=8))])
    assert dict(ends.counts) == {End.CRASHED: 1}
    assert Ends().counts.total() == 0


def test_a_pod_that_is_deleted_and_one_that_never_ended_count_nothing() -> None:
    ends = Ends(SINCE)
    ends.look(
        [pod(ended(), deletionTimestamp=at(9)), pod({"name": "learner", "restartCount": 0}, uid="v"), pod(uid="w")]
    )
    assert ends.counts.total() == 0


def test_a_container_that_stays_down_has_ended() -> None:
    ends = Ends(SINCE)
    over = {"exitCode": 2, "finishedAt": at(1)}
    ends.look([pod({"name": "learner", "restartCount": 0, "state": {"terminated": over}})])
    assert dict(ends.counts) == {End.BAD_INPUT: 1}
    # The same end, seen from the next start on.
    ends.look([pod(ended(2, times=1, seconds=1))])
    assert dict(ends.counts) == {End.BAD_INPUT: 1}


@pytest.mark.parametrize("status", [None, {"containerStatuses": [{"name": None, "restartCount": "x", "state": "?"}]}])
def test_a_damaged_status_counts_nothing(status: Any) -> None:
    ends = Ends(SINCE)
    ends.look([PodObserved({"metadata": {"uid": "u"}, "status": status}, ())])
    assert ends.counts.total() == 0
