from dataclasses import replace
from typing import Any

import pytest

from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.standstill import standstill
from testbed.virtual_cluster.operator_world import World, job_object

CAUSE = Cause(Reason.OPERATOR_BLOCKED, "lease team/diloco-jobs: exceeded quota")


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_a_new_job_says_why_nothing_is_done_once_and_does_nothing() -> None:
    world = World(job=job_object())
    plan = standstill(world.job, CAUSE, world.now, 30.0)
    assert plan.status is not None
    told = conditions(plan.status)
    assert told["Ready"] == told["Progressing"] == ("False", "OperatorBlocked")
    assert told["Degraded"] == ("True", "OperatorBlocked")
    assert [one.reason for one in plan.events] == ["OperatorBlocked"]
    assert replace(plan, status=None, events=()) == type(plan)(30.0)
    world.job["status"] = plan.status
    assert standstill(world.job, CAUSE, world.now, 30.0) == type(plan)(30.0)


@pytest.mark.parametrize(("seconds", "ready"), [(60, ("Unknown", "OperatorBlocked")), (400, ("True", "BudgetReached"))])
def test_what_ran_or_ended_before_is_kept(seconds: int, ready: tuple[str, str]) -> None:
    world = World(job=job_object())
    world.run(seconds)
    before = dict(world.status)
    plan = standstill(world.job, CAUSE, world.now, 30.0)
    assert plan.status is not None
    assert conditions(plan.status)["Ready"] == ready
    assert conditions(plan.status)["Degraded"] == ("True", "OperatorBlocked")
    assert {key: plan.status.get(key) for key in ("phase", "regions", "learners")} == {
        key: before.get(key) for key in ("phase", "regions", "learners")
    }
