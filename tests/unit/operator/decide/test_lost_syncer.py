"""The syncer's pod on a node that does not respond: only a person can release it."""

import pytest

from diloco_operator.decide.lost_pods import SYNCER_STOPPED
from testbed.virtual_cluster.operator_world import World
from tests.unit.operator.decide.training_world import degraded, training_world


def syncer_lost(w: World) -> tuple[str, str]:
    """Name and uid of the syncer's pod, whose node is lost."""
    (name,) = w.syncer_pods()
    uid = str(w.pods.pods[name]["metadata"]["uid"])
    w.pods.stuck.add(name)
    w.pods.delete(name)
    return name, uid


def test_the_syncers_pod_stays_and_its_condition_says_what_to_do() -> None:
    w = training_world()
    name, uid = syncer_lost(w)
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.run(400)
    assert not w.forced
    assert name in w.pods.pods
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "SyncerNodeLost")
    assert f"node-1 does not respond, so the syncer's pod {name} stays" in message
    for way in ("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", "delete the Node object", uid):
        assert way in message


@pytest.mark.parametrize("suspend", [False, True])
def test_a_person_who_names_the_syncers_pod_lets_the_job_go_on(suspend: bool) -> None:
    w = training_world()
    name, uid = syncer_lost(w)
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.change(suspend=suspend)
    w.run(300)
    assert not [deletion for deletion in w.forced if deletion.uid == uid]
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: "another-uid"}
    w.run(20)
    assert "that annotation is another-uid at present, which is not the uid of this pod" in degraded(w)[2]
    assert name in w.pods.pods
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: uid}
    w.pods.troubles.clear()
    w.run(60)
    assert name not in w.pods.pods
    assert [deletion.reason for deletion in w.forced if deletion.uid == uid] == ["SyncerPodReleased"]
    assert w.status["phase"] == ("Suspended" if suspend else "Training")
    w.run(60)
    assert degraded(w)[0] == "False"


def test_an_annotation_alone_ends_no_syncer_that_runs() -> None:
    w = training_world()
    (name,) = w.syncer_pods()
    uid = w.pods.pods[name]["metadata"]["uid"]
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: uid}
    w.run(120)
    assert w.pods.pods[name]["metadata"]["uid"] == uid
    assert not w.forced
