import copy
from dataclasses import replace
from typing import Any

import pytest

from diloco_operator.api_server.errors import ApiError, Call, UnavailableError, of_status
from diloco_operator.jobs.observe.memory import REFUSED_SECONDS
from diloco_operator.process.metrics import Metrics
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld, Failing
from tests.unit.operator.jobs.training_cluster import reasons, training

VICTIM = "demo--us-west-old-1"


def lost() -> tuple[ClusterWorld, str]:
    """A job that trains, and the uid of a learner's pod whose node was lost a minute and a half ago."""
    w = training()
    uid = str(w.pods.pods[VICTIM]["metadata"]["uid"])
    w.pods.stuck.add(VICTIM)
    w.pods.delete(VICTIM)
    w.run(75)
    assert w.pods.pods[VICTIM]["metadata"]["uid"] == uid
    return w, uid


def of_pods(verb: str, code: int) -> Failing:
    """A server that answers this with an error."""

    def answer(asked: str, kind: str, name: str, _body: Any) -> ApiError | None:
        at = kind in ("Pod", "PersistentVolumeClaim") and asked == verb and name in ("", VICTIM)
        return of_status(Call(verb, kind, NAMESPACE, name), code, {"message": "as the test wants it"}) if at else None

    return answer


def deletions(w: ClusterWorld) -> int:
    return w.api.writes.count(("delete", "Pod", VICTIM))


def test_a_lost_pod_is_deleted_once_reported_and_counted() -> None:
    w, uid = lost()
    metrics = Metrics()
    w.controller = replace(w.controller, pods_deleted=metrics.pods_deleted)
    w.run(60)
    assert w.pods.pods[VICTIM]["metadata"]["uid"] != uid
    assert deletions(w) == 1
    (event,) = [event for event in w.api.events if event["reason"] == "LostPodDeleted"]
    expected = f"deleted by force: pod {VICTIM} of us-west/old/1 on node-1, which does not respond"
    assert (event["type"], event["note"]) == ("Warning", expected)
    name, labels = "diloco_operator_pods_deleted_total", {"reason": "LostPodDeleted"}
    assert metrics.registry.get_sample_value(name, labels) == 1.0
    assert w.status()["learners"]["summary"] == "4/4"
    assert w.condition("Degraded")["status"] == "False"


def test_a_missing_right_is_reported_and_asked_for_now_and_then() -> None:
    w, uid = lost()
    asked = 0
    refuse = of_pods("delete", 403)

    def counted(*request: Any) -> ApiError | None:
        nonlocal asked
        asked += request[0] == "delete"
        return refuse(*request)

    w.api.failing = counted
    w.run(120)
    assert w.condition("Degraded")["reason"] == "LostPodKept"
    assert "the operator has no right to delete pods in this namespace" in w.condition("Degraded")["message"]
    assert 2 <= asked <= 120 / REFUSED_SECONDS + 1
    assert w.status()["phase"] == "Training"
    assert reasons(w).count("LostPodKept") == 1
    assert "LostPodDeleted" not in reasons(w)
    w.api.failing = lambda *_: None
    w.run(60)
    assert w.pods.pods[VICTIM]["metadata"]["uid"] != uid
    assert w.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("code", [404, 409])
def test_a_pod_that_went_by_itself_is_no_failure(code: int) -> None:
    w, _ = lost()
    w.api.failing = of_pods("delete", code)
    w.run(30)
    assert "LostPodDeleted" not in reasons(w)
    assert "LostPodKept" not in reasons(w)
    w.api.failing = lambda *_: None
    w.run(30)
    assert deletions(w) == 1


def test_a_server_that_fails_is_tried_again_after_the_status_is_written() -> None:
    w, _ = lost()
    w.api.failing = of_pods("delete", 503)
    w.tick(20)
    error = w.reconcile()
    assert isinstance(error, UnavailableError)
    assert w.condition("Degraded")["reason"] == "NodeLost"
    w.api.failing = lambda *_: None
    w.run(20)
    assert deletions(w) == 1


def mounted(w: ClusterWorld, mode: str) -> None:
    """The lost pod mounts a claim of the user's."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}
    w.pods.pods[VICTIM]["spec"]["volumes"] = [volume]
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "corpus", "uid": "claim-1", "generation": 1}}
    w.home.put({**claim, "spec": {"accessModes": [mode]}})


@pytest.mark.parametrize(("mode", "deleted"), [("ReadWriteOnce", 0), ("ReadWriteMany", 1)])
def test_access_modes_are_read_from_the_users_claim(mode: str, deleted: int) -> None:
    w, _ = lost()
    mounted(w, mode)
    w.run(60)
    assert deletions(w) == deleted


def test_claims_that_may_not_be_listed_keep_only_their_pods() -> None:
    w, _ = lost()
    mounted(w, "ReadWriteMany")
    real = w.api.items

    async def forbidden(selection: Any) -> Any:
        if selection.kind.name == "PersistentVolumeClaim":
            raise of_status(Call("list", "persistentvolumeclaims", NAMESPACE), 403, {"message": "no"})
        return await real(selection)

    w.api.items = forbidden  # type: ignore[method-assign] # a server with fewer rules
    other = "demo--us-west-old-2"
    w.pods.stuck.add(other)
    w.pods.delete(other)
    w.run(120)
    assert deletions(w) == 0
    assert "mounts claim corpus, whose access modes are not known" in w.condition("Degraded")["message"]
    assert ("delete", "Pod", other) in w.api.writes


def test_the_action_that_counts_is_that_of_the_moment() -> None:
    w, _ = lost()
    # The watch has not told of the change yet: the job is read again before a pod is deleted.
    job = copy.deepcopy(w.job())
    job["spec"]["failurePolicy"] = {"lostPods": {"action": "Wait"}}
    w.tick(20)
    w.watch()
    w.home.put(job)
    w.watch = lambda: None  # type: ignore[method-assign] # it is late
    w.reconcile()
    assert deletions(w) == 0
