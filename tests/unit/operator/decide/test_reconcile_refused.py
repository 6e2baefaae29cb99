"""Objects that the API server refuses, names that are taken, and a spec or status that cannot be used."""

from datetime import timedelta
from typing import Any

import pytest

from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import stamp
from tests.unit.operator.decide.training_world import degraded, training_world


def test_an_object_that_the_api_server_refuses_is_told_and_tried_again() -> None:
    key = ChildKey("StatefulSet", "demo--us-west-old")
    w = World(refusals={key: "spec.template.spec.containers[0].resources.requests: quantities must match"})
    w.run(60)
    assert degraded(w)[1] == "ApplyRefused"
    assert degraded(w)[2].startswith("the API server rejected StatefulSet demo--us-west-old: spec.template")
    assert w.status["learners"]["training"] == 1, "the other pool trains"
    w.refusals.clear()
    w.run(60)
    assert degraded(w)[0] == "False"
    assert w.status["learners"]["summary"] == "4/4"


def test_a_name_that_is_taken_is_left_alone_and_nothing_new_is_made() -> None:
    key = ChildKey("Service", "demo-syncer")
    w = World(foreign=frozenset({key}))
    w.run(30)
    assert not w.children
    assert degraded(w) == ("True", "NameTaken", "names taken by another owner: Service demo-syncer")
    w.foreign = frozenset()
    w.run(60)
    assert w.status["phase"] == "Training"
    assert degraded(w)[0] == "False"


def test_a_job_that_runs_is_kept_running_while_one_of_its_names_is_taken() -> None:
    w = training_world()
    key = ChildKey("Service", "demo-syncer")
    taken = w.children.pop(key)
    w.foreign = frozenset({key})
    w.set_named("us-west/old")["spec"]["replicas"] = 1
    w.run(30)
    assert w.set_named("us-west/old")["spec"]["replicas"] == 3
    assert degraded(w)[1] == "NameTaken"
    assert taken["metadata"]["name"] == "demo-syncer"


INVALID: dict[str, tuple[dict[str, Any], str, str]] = {
    "a mistake": ({"sync": {"quorum": 9}}, "InvalidSpec", "spec.sync.quorum: 9 is above the 4 learners"),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_cannot_be_is_invalid_and_creates_nothing(case: str) -> None:
    spec, reason, words = INVALID[case]
    w = World(job=job_object(**spec))
    w.run(30)
    assert not w.children
    assert (w.status["phase"], w.status["reason"]) == ("Invalid", reason)
    assert words in w.condition("Ready")["message"]
    assert w.status_writes == 1
    assert [(event.type, event.reason) for event in w.events] == [("Warning", reason)]


def test_without_any_image_nothing_is_created_until_there_is_one() -> None:
    w = World()
    w.options = type(w.options)(operator_namespace="diloco-system")
    w.run(30)
    assert not w.children
    assert (w.status["phase"], w.status["reason"]) == ("Pending", "NoImage")
    w.change(image="registry.example/diloco@sha256:" + 64 * "0")
    w.run(60)
    assert w.status["phase"] == "Training"


def test_what_runs_of_a_job_that_became_invalid_is_left_running() -> None:
    w = training_world()
    progress = w.status["progress"]
    w.change(sync={"quorum": 9})
    w.run(30)
    assert w.status["phase"] == "Invalid"
    assert w.condition("Ready")["message"].endswith("what already runs keeps running")
    assert len(w.pods.pods) == 5
    assert w.status["progress"]["step"] > progress["step"], "it trains on"
    w.change(sync={"quorum": 1})
    w.run(30)
    assert w.status["phase"] == "Training"


def test_a_status_that_somebody_has_spoilt_is_written_anew() -> None:
    w = training_world()
    w.job["status"] = {"phase": 7, "conditions": "none"}
    w.run(10)
    assert w.status["phase"] == "Training"
    assert w.status["startTime"] <= stamp(w.now + timedelta(seconds=1))
