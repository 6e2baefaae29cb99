import pytest

from diloco_operator.cluster_state import ClusterState
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, ClustersWorld
from tests.unit.operator.decide.training_world import training_abroad as training

BOUND = 600.0


def is_there(world: ClustersWorld) -> bool:
    """Whether the job is; as a function, because it changes."""
    return not world.gone


def away(w: ClustersWorld, cluster: str = FAR) -> None:
    w.others[cluster].state = ClusterState.UNREACHABLE


def back(w: ClustersWorld, cluster: str = FAR) -> None:
    w.others[cluster].state = ClusterState.READY


@pytest.mark.parametrize("restarted", [False, True])
def test_suspending_waits_for_a_cluster_no_longer_than_the_bound(*, restarted: bool) -> None:
    w = training()
    away(w)
    w.run(10)
    if restarted:
        w.new_operator()
    w.change(suspend=True)
    w.run(300, every=20.0)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.pods_of("syncer"), "the learners may still hand in their work"
    assert not w.pods_of("learner")
    w.run(BOUND - 260, every=20.0)
    assert w.status["phase"] == "Suspended"
    assert w.condition("Suspended")["message"] == (
        f"learners in {FAR} are stopped once that cluster answers: it does not at present"
    )
    assert not w.pods_of("syncer")
    assert w.running_abroad()[FAR], "nobody could stop it"
    back(w)
    for _ in range(12):
        w.run(5)
        assert not w.pods_of("syncer"), "it is not started again for learners that are back"
    assert w.status["phase"] == "Suspended"
    assert w.condition("Suspended")["message"] == ""
    assert not w.running_abroad()[FAR]


def test_a_cluster_that_lacks_a_rule_is_waited_for_while_it_stops() -> None:
    w = training()
    w.others[FAR].state = ClusterState.FORBIDDEN
    w.run(BOUND + 60, every=20.0)
    w.change(suspend=True)
    w.run(10)
    assert w.condition("Suspended")["message"] == "learners' pods are stopping"
    assert w.pods_of("syncer")
    w.run(60)
    assert w.status["phase"] == "Suspended"
    assert not w.others[FAR].pods.pods


def test_a_cluster_that_forbids_scaling_is_awaited_to_the_bound_only() -> None:
    w = training()
    far = w.others[FAR]
    far.state, far.refuses = ClusterState.FORBIDDEN, True
    w.refusals = {ChildKey("StatefulSet", "demo--far-new", FAR): "statefulsets.apps is forbidden"}
    w.change(suspend=True)
    w.run(300, every=20.0)
    assert w.condition("Suspended")["reason"] == "Suspending"
    w.run(BOUND - 200, every=20.0)
    assert w.status["phase"] == "Suspended"
    assert FAR in w.condition("Suspended")["message"]
    assert w.running_abroad()[FAR]


def test_a_suspended_job_stays_so_when_an_operator_cannot_see_a_cluster() -> None:
    w = training()
    w.change(suspend=True)
    w.run(60)
    away(w)
    w.new_operator()
    w.run(60)
    assert w.status["phase"] == "Suspended"
    assert not w.pods_of("syncer")


def test_a_job_completes_without_a_cluster_and_is_cleaned_up_later() -> None:
    w = training()
    away(w)
    w.syncer.merged = float(w.syncer.budget)
    w.run(60)
    assert w.status["phase"] == "Complete"
    assert w.pods_of("syncer")
    w.run(BOUND, every=20.0)
    assert not w.pods.pods
    assert w.condition("Degraded")["reason"] == "ClusterUnreachable"
    back(w)
    w.run(60)
    assert not any(other.pods.pods for other in w.others.values())
    assert w.condition("Degraded")["status"] == "False"


def test_a_complete_job_goes_on_in_all_clusters_with_a_larger_budget() -> None:
    w = training()
    w.syncer.merged = float(w.syncer.budget)
    w.run(60)
    assert w.status["phase"] == "Complete"
    assert not any(other.pods.pods for other in w.others.values())
    w.change(training=w.job["spec"]["training"] | {"tokens": 2 * w.syncer.budget})
    w.run(90)
    assert (w.status["phase"], w.status["learners"]["summary"]) == ("Training", "4/4")


@pytest.mark.parametrize("readable", [True, False])
def test_a_deleted_job_goes_once_nothing_of_it_is_left_anywhere(*, readable: bool) -> None:
    w = training()
    if not readable:
        w.job["spec"]["training"] = "as of a later version"
    w.delete_job()
    assert is_there(w)
    plan = w.reconcile()
    assert {key.cluster for key in plan.delete} == {"", FAR, FARTHER}
    assert {key.kind for key in plan.delete if not key.cluster} == {"StatefulSet", "Deployment"}
    assert [key.kind for key in plan.delete][:3] == ["StatefulSet"] * 3, "learners first"
    assert not plan.remove_finalizer
    w.run(10)
    assert w.gone
    assert [other.objects for other in w.others.values()] == [{}, {}]
    assert (w.left_behind, [event.reason for event in w.events if event.reason == "ChildrenLeft"]) == ({}, [])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_job_waits_for_a_cluster_no_longer_than_the_bound(*, restarted: bool) -> None:
    w = training()
    away(w)
    w.run(10)
    if restarted:
        w.new_operator()
    objects = dict(w.others[FAR].objects)
    w.delete_job()
    w.run(BOUND - 5)
    assert is_there(w)
    assert not w.others[FARTHER].objects
    w.run(10)
    assert w.gone
    assert w.others[FAR].objects == objects
    assert w.left_behind == {FAR: 0 if restarted else len(objects)}
    (event,) = [one for one in w.events if one.reason == "ChildrenLeft"]
    what = "an unknown number of objects is" if restarted else f"{len(objects)} object(s) are"
    assert event.type == "Warning"
    assert event.message == f"600 s after the deletion, {what} left in cluster {FAR} (ClusterUnreachable)"
    w.sweep()
    assert w.others[FAR].objects == objects, "it is still away"
    back(w)
    w.sweep()
    assert w.others[FAR].objects == {}


def test_an_operator_started_after_the_bound_asks_every_cluster_first() -> None:
    w = training()
    away(w)
    w.delete_job()
    w.run(BOUND - 5)
    w.new_operator()
    for other in w.others.values():
        other.settled = False
    w.run(30)
    assert is_there(w), "nothing is known of the clusters yet"
    for other in w.others.values():
        other.settled = True
    w.run(10)
    assert w.gone
    (event,) = [one for one in w.events if one.reason == "ChildrenLeft"]
    assert event.message.endswith(f"left in cluster {FAR} (ClusterUnreachable)")


def test_a_deleted_job_goes_at_once_when_the_cluster_is_back() -> None:
    w = training()
    away(w)
    w.delete_job()
    w.run(60)
    back(w)
    w.run(10)
    assert (w.gone, w.left_behind) == (True, {})


def test_objects_being_deleted_are_awaited_and_not_deleted_again() -> None:
    w = training()
    w.others[FAR].objects["StatefulSet", "demo--far-new"]["metadata"]["deletionTimestamp"] = "2026-01-02T03:05:05Z"
    w.delete_job()
    plan = w.reconcile()
    assert ChildKey("StatefulSet", "demo--far-new", FAR) not in plan.delete
    w.run(10)
    assert is_there(w)
    del w.others[FAR].objects["StatefulSet", "demo--far-new"]
    w.run(5)
    assert w.gone


def test_kinds_that_may_not_be_listed_are_not_taken_for_gone() -> None:
    w = training()
    w.others[FAR].state = ClusterState.FORBIDDEN
    w.others[FAR].unlisted = frozenset({"Service"})
    w.delete_job()
    w.run(60)
    assert list(w.others[FAR].objects) == [("Service", "demo-learners")]
    assert is_there(w)
    w.others[FAR].state, w.others[FAR].unlisted = ClusterState.READY, frozenset()
    w.run(10)
    assert w.gone


def test_two_secrets_for_one_place_do_not_keep_a_deleted_job() -> None:
    w = training()
    w.others[FAR].same_as, w.others[FARTHER].same_as = FARTHER, FAR
    w.others[FARTHER].objects = w.others[FAR].objects
    w.delete_job()
    w.run(10)
    assert w.gone


def test_a_finalizer_of_somebody_elses_is_not_ours_to_serve() -> None:
    w = training()
    w.job["metadata"]["finalizers"] = ["example.com/other"]
    w.job["metadata"]["deletionTimestamp"] = "2026-01-02T03:05:05Z"
    del w.home.objects["Service", "demo-syncer"]
    plan = w.plan()
    assert plan == Plan(plan.again_in_seconds), "nothing is made for a job that goes"
    assert FINALIZER not in w.job["metadata"]["finalizers"]


def test_a_pod_elsewhere_that_looks_like_a_syncer_is_not_waited_for() -> None:
    w = training()
    (pod,) = w.others[FAR].pods.pods.values()
    own = {**pod["metadata"]["labels"], "app.kubernetes.io/component": "syncer"}
    metadata = {**pod["metadata"], "name": "stray", "labels": own, "ownerReferences": [{"uid": "nobody"}]}
    w.others[FAR].pods.pods["stray"] = {**pod, "metadata": metadata}
    w.change(suspend=True)
    w.run(120)
    assert w.status["phase"] == "Suspended"
