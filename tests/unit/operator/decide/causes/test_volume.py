"""A claim that is not bound."""

from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import unschedulable
from tests.unit.operator.decide.training_world import degraded


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
    w.home.objects["PersistentVolumeClaim", "demo-syncer"]["status"] = {"phase": "Pending"}
    w.reconcile()
    assert degraded(w)[0] == "False"
