from datetime import timedelta

from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import stamp
from tests.unit.operator.decide.training_world import degraded, training_world


def test_a_name_that_is_taken_is_left_alone_and_nothing_new_is_made() -> None:
    key = ChildKey("Service", "demo-syncer")
    w = World(foreign=frozenset({key}))
    w.run(30)
    assert not w.home.objects
    assert degraded(w) == ("True", "NameTaken", "names taken by another owner: Service demo-syncer")
    w.foreign = frozenset()
    w.run(60)
    assert w.status["phase"] == "Training"
    assert degraded(w)[0] == "False"


def test_a_job_that_runs_is_kept_running_while_one_of_its_names_is_taken() -> None:
    w = training_world()
    key = ChildKey("Service", "demo-syncer")
    taken = w.home.objects.pop(("Service", "demo-syncer"))
    w.foreign = frozenset({key})
    w.set_named("us-west/old")["spec"]["replicas"] = 1
    w.run(30)
    assert w.set_named("us-west/old")["spec"]["replicas"] == 3
    assert degraded(w)[1] == "NameTaken"
    assert taken["metadata"]["name"] == "demo-syncer"


def test_what_cannot_be_is_invalid_and_creates_nothing() -> None:
    w = World(job=job_object(sync={"quorum": 9}))
    w.run(30)
    assert not w.home.objects
    assert (w.status["phase"], w.status["reason"]) == ("Invalid", "InvalidSpec")
    assert "spec.sync.quorum: 9 is above the learners of spec.regions, 4" in w.condition("Ready")["message"]
    assert w.status_writes == 1
    assert [(event.type, event.reason) for event in w.events] == [("Warning", "InvalidSpec")]


def test_without_any_image_nothing_is_created_until_there_is_one() -> None:
    w = World()
    w.options = type(w.options)(operator_namespace="diloco-system")
    w.run(30)
    assert not w.home.objects
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
