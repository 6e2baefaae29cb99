import pytest

from diloco_operator.api_server.errors import ApiError, Call, of_status
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.world_pods import Object, unschedulable
from tests.unit.operator.jobs.training_cluster import training


def lists_fail(world: ClusterWorld, code: int = 503, kind: str = "Pod") -> list[str]:
    """Make lists of ``kind`` fail from now on; returns the attempted lists."""
    tried: list[str] = []

    def failing(verb: str, its: str, name: str, body: Object) -> ApiError | None:
        del body
        if verb != "list":
            return None
        tried.append(its)
        if its != kind:
            return None
        return of_status(Call("list", its, NAMESPACE, name), code, {"message": "etcdserver: request timed out"})

    world.api.failing = failing
    return tried


def heals(world: ClusterWorld) -> None:
    world.api.failing = lambda *_: None


@pytest.mark.parametrize("code", [500, 503, 403, 429])
@pytest.mark.parametrize("kind", ["Pod", "Event"])
def test_the_children_are_applied_and_the_status_is_written(kind: str, code: int) -> None:
    w = ClusterWorld()
    w.run(10)
    w.pods.troubles["demo--us-west"] = unschedulable("0/3 nodes are available")
    tried = lists_fail(w, code, kind)
    w.change_pool(region=0, learners=2)
    error = w.reconcile()
    assert error is not None, "it is tried again"
    assert error.code == code
    assert tried.count(kind) == 1, "once in a reconcile"
    (east,) = [item for name, item in w.home.of_kind("StatefulSet").items() if "us-east" in name]
    assert east["spec"]["replicas"] == 2
    assert w.status()["observedGeneration"] == w.job()["metadata"]["generation"]
    w.run(60)
    assert w.status()["learners"]["training"] == 2
    assert tried.count(kind) > 1
    heals(w)
    w.run(10)
    assert w.condition("Degraded")["reason"] == "Unschedulable"


def test_what_was_found_before_stands_while_nobody_can_look() -> None:
    w = ClusterWorld()
    w.pods.troubles["demo--us-west"] = unschedulable("0/3 nodes are available")
    w.run(60)
    before = w.condition("Degraded")
    assert before["reason"] == "Unschedulable"
    events = len(w.api.events)
    lists_fail(w)
    w.run(60)
    assert w.condition("Degraded") == before
    assert w.api.events[events:] == []
    heals(w)
    w.pods.troubles.clear()
    w.run(60)
    assert w.condition("Degraded")["status"] == "False"


def test_what_is_graver_and_known_without_a_look_is_told() -> None:
    w = ClusterWorld()
    w.pods.troubles["demo--us-west"] = unschedulable("0/3 nodes are available")
    w.run(60)
    lists_fail(w)
    w.syncers["demo"].checkpoint_problem = "the disk is full"
    w.run(30)
    assert w.condition("Degraded")["reason"] == "CheckpointFailing"
    w.syncers["demo"].checkpoint_problem = ""
    w.run(30)
    assert w.condition("Degraded")["status"] == "False", "what needs no look is taken back without one"


@pytest.mark.parametrize("unreadable", [{}, {"training": {"tokens": "many"}}], ids=["readable", "unreadable"])
def test_nobody_says_that_no_pod_is_left_without_having_looked(unreadable: Object) -> None:
    w = training()
    lists_fail(w)
    w.change(suspend=True, **unreadable)
    w.run(120)
    assert not w.pods.pods
    suspended = w.condition("Suspended")
    assert (suspended["status"], suspended["reason"]) == ("False", "Suspending")
    heals(w)
    w.run(30)
    assert w.condition("Suspended")["status"] == "True"
    lists_fail(w)
    w.run(60)
    assert w.condition("Suspended")["status"] == "True", "said once it stands"
