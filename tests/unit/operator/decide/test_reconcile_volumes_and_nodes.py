"""A claim that is not bound, and pods whose node is lost."""

from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import unschedulable
from tests.unit.operator.decide.training_world import OLD, degraded, training_world


def test_a_missing_storage_class_is_reported_until_the_claim_is_bound() -> None:
    w = World()
    w.pods.unprovisioned = 'storageclass.storage.k8s.io "fast" not found'
    w.pods.troubles["demo-syncer"] = unschedulable("0/1 nodes: pod has unbound immediate PersistentVolumeClaims.")
    w.run(30)
    assert w.status["phase"] == "Pending"
    expected = 'claim demo-syncer is pending: storageclass.storage.k8s.io "fast" not found'
    assert degraded(w) == ("True", "VolumePending", expected)
    assert w.condition("Ready")["reason"] == "WaitingForSyncer"
    w.pods.unprovisioned = ""
    w.pods.troubles.clear()
    w.run(30)
    assert degraded(w)[0] == "False"
    assert w.status["phase"] == "Training"


def test_a_claim_that_waits_for_its_first_pod_is_no_trouble() -> None:
    w = World()
    w.run(5)
    w.children[ChildKey("PersistentVolumeClaim", "demo-syncer")]["status"] = {"phase": "Pending"}
    assert degraded(w)[0] == "False"


def test_a_pod_that_does_not_end_names_its_lost_node() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.pods.delete(f"{OLD}1")
    w.run(60)
    assert degraded(w)[0] == "False"
    w.run(60)
    assert degraded(w)[1:] == (
        "NodeLost",
        f"1 of 3 learners of us-west/old cannot be deleted: node-1 does not respond, so pod {OLD}1 stays",
    )


def test_the_syncer_waits_a_while_for_a_lost_nodes_learner_then_stops() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.change(suspend=True)
    w.run(50)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.syncer_pods(), "it may still hand in its work"
    w.run(150)
    assert not w.syncer_pods()
    assert w.condition("Suspended")["status"] == "True"
    assert degraded(w)[1] == "NodeLost"
    w.pods.stuck.clear()
    w.run(60)
    assert w.status["phase"] == "Suspended"
    assert degraded(w)[0] == "False"


def test_a_complete_job_ends_its_syncer_although_a_learners_node_is_lost() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.syncer.merged = w.syncer.budget
    w.run(200)
    assert w.status["phase"] == "Complete"
    assert w.learner_pods() == [f"{OLD}1"]
    assert not w.syncer_pods()
    assert degraded(w)[1:] == (
        "NodeLost",
        f"1 learner(s) of us-west/old cannot be deleted: node-1 does not respond, so pod {OLD}1 stays",
    )
    w.pods.stuck.clear()
    w.run(60)
    assert degraded(w)[0] == "False"


def test_a_syncer_on_a_lost_node_is_not_said_to_be_suspended() -> None:
    w = training_world()
    w.pods.stuck |= set(w.syncer_pods())
    w.change(suspend=True)
    w.run(300)
    assert w.condition("Suspended")["status"] == "False"
    assert degraded(w)[1] == "NodeLost"
