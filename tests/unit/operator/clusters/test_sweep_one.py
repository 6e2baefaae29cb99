"""One sweep of one cluster: what is asked at home, what is deleted, and what a failure ends."""

import asyncio
import logging

import pytest

from diloco_operator.cluster.errors import (
    ApiError,
    Call,
    ForbiddenError,
    TooManyRequestsError,
    UnansweredError,
    UnauthorizedError,
    UnavailableError,
)
from diloco_operator.clusters.sweep_one import MOST_JOBS_ASKED, Outcome, sweep
from tests.unit.operator.clusters.swept_cluster import HOME_ID, THERE, Far, Home, left

CALL = Call("delete", "secrets")


def swept(far: Far, home: Home, home_id: str = HOME_ID) -> Outcome:
    return asyncio.run(sweep(far.place, list(far.objects.values()), home_id, home.side))


def test_what_a_job_that_is_gone_left_is_deleted_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    far, home = Far(), Home({("team", "other"): "alive"})
    far.put(left("a"), left("b", kind="StatefulSet"), left("c", job="other", uid="alive"))
    with caplog.at_level(logging.INFO):
        assert swept(far, home) is Outcome.DONE
    assert far.names == {"c"}
    assert home.asked == ["demo"]
    assert home.swept == ["team/far", "team/far"]
    assert "cluster team/far: StatefulSet b deleted, which was left by job team/demo" in caplog.messages


def test_a_server_that_serves_no_jobs_has_not_said_that_one_is_gone() -> None:
    far, home = Far(), Home(serves_jobs=False)
    far.put(left("a"))
    assert swept(far, home) is Outcome.FAILED
    assert far.names == {"a"}


def test_a_job_that_cannot_be_asked_for_keeps_its_objects() -> None:
    far = Far()
    home = Home(errors={"demo": ForbiddenError(Call("get", "dilocojobs"), "no", code=403)})
    far.put(left("a"), left("b", job="gone"))
    assert swept(far, home) is Outcome.FAILED
    assert far.names == {"a"}


def test_a_home_that_does_not_answer_is_asked_for_one_job_only() -> None:
    far = Far()
    home = Home(errors={"job-1": UnansweredError(Call("get", "dilocojobs"), "no answer in time")})
    far.put(*(left(f"o{index}", job=f"job-{index}") for index in range(1, 5)))
    assert swept(far, home) is Outcome.FAILED
    assert home.asked == ["job-1"]
    assert len(far.names) == 4


def test_an_object_that_is_gone_or_replaced_by_another_is_no_failure() -> None:
    far, home = Far(), Home()
    far.put(left("a"), left("b"), left("c"))
    listed = list(far.objects.values())
    far.objects.pop(("Secret", "a"))
    replaced = left("b")
    replaced["metadata"]["uid"] = "another"
    far.put(replaced)
    assert asyncio.run(sweep(far.place, listed, HOME_ID, home.side)) is Outcome.DONE
    assert far.names == {"b"}
    assert home.swept == ["team/far"]


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (ForbiddenError(CALL, "no", code=403), 3),
        (UnavailableError(CALL, "etcd is away", code=503), 3),
        (UnansweredError(CALL, "no answer in time"), 1),
        (UnauthorizedError(CALL, "who?", code=401), 1),
        (TooManyRequestsError(CALL, "later", code=429), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_deletion_that_fails_ends_those_that_would_fail_too(error: ApiError, tried: int) -> None:
    far, home = Far(errors={"a": error}), Home()
    far.put(left("a"), left("b"), left("c"))
    assert swept(far, home) is Outcome.FAILED
    assert len(far.tried) == tried
    assert far.names == ({"a"} if tried == 3 else {"a", "b", "c"})
    assert far.failed == [error]


def test_what_is_refused_for_a_kind_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refused = ForbiddenError(CALL, "may not delete secrets", code=403)
    far, home = Far(errors={"a": refused, "b": refused}), Home()
    far.put(left("a"), left("b"))
    swept(far, home)
    assert sum("may not delete" in line for line in caplog.messages) == 1


def test_made_up_jobs_cost_home_a_bounded_number_of_requests() -> None:
    far, home = Far(), Home()
    far.put(*(left(f"o{index}", job=f"job-{index}") for index in range(MOST_JOBS_ASKED + 5)))
    assert swept(far, home) is Outcome.MORE
    assert len(home.asked) == MOST_JOBS_ASKED
    assert swept(far, home) is Outcome.DONE
    assert far.names == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"job": "../../../api/v1/secrets"},
        {"job": ".."},
        {"team": "a/b"},
        {"job": "x\nforged line"},
        {"kind": "Node"},
        {"kind": "PersistentVolumeClaim"},
    ],
    ids=str,
)
def test_what_no_job_could_have_made_is_left_alone(changed: dict[str, str]) -> None:
    far, home = Far(), Home()
    far.put(left("a", **changed))
    assert swept(far, home) is Outcome.DONE
    assert (home.asked, far.tried) == ([], [])


def test_an_object_of_another_namespace_there_is_left_alone() -> None:
    far, home = Far(), Home()
    item = left("a")
    item["metadata"]["namespace"] = f"not-{THERE}"
    far.put(item)
    assert swept(far, home) is Outcome.DONE
    assert far.tried == []
