"""Jobs that are deleted or made anew while their other cluster does not answer: bounded, told, and swept later.

The API server of the other cluster is cut off from home once, and everything happens meanwhile: the operator is killed
as well.
"""

from typing import Any

import pytest

from testbed.kind import chart as charts
from testbed.kind.clusters import Cluster
from testbed.kind.cuts import cut_off
from testbed.kind.waiting import WAIT_SECONDS, wait_until
from tests.support.across import WEST, Far, api_cut, give_secret, has_reason, reachable, region
from tests.support.cluster_jobs import ClusterJob, apply, apply_idle
from tests.support.cluster_nodes import kill_container
from tests.support.cluster_operator import ClusterOperator

pytestmark = pytest.mark.timeout(900)

KEPT, LEFT, BY_HAND, RESTORED = "kept", "left", "by-hand", "restored"


def idle(home: Cluster, namespace: str, name: str) -> ClusterJob:
    return apply_idle(home, namespace, reachable(home, name, region("west", "west")))


def delete(job: ClusterJob) -> None:
    job.kubectl("delete", "dilocojob", job.name, "--wait=false")


def without_finalizer(job: ClusterJob) -> None:
    """As somebody does who cannot wait."""
    job.kubectl("patch", "dilocojob", job.name, "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')


def backup_of(job: ClusterJob) -> dict[str, Any]:
    """The job as a backup has it."""
    found = job.cluster.get("dilocojobs", job.name, job.namespace)
    metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
    return {key: found[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": metadata}


def uids_there(far: Far, name: str) -> set[str]:
    """Of the jobs that objects of this name's job are of."""
    items = far.job(name).items("configmaps,statefulsets,services,secrets,networkpolicies")
    return {item["metadata"]["labels"]["diloco.dev/job-uid"] for item in items}


def test_what_is_deleted_while_a_cluster_is_away_is_swept_when_it_is_back(
    cluster: Cluster, operator: ClusterOperator, namespace: str, elsewhere: str, west: Far
) -> None:
    give_secret(cluster, elsewhere, west.secret())
    left = apply(cluster, namespace, reachable(cluster, LEFT, region("west", "west")))
    left.all_train(WEST)
    kept, by_hand, restored = (idle(cluster, namespace, name) for name in (KEPT, BY_HAND, RESTORED))
    idle(cluster, elsewhere, "gone")
    worker = operator.has_taken_over()
    before = {name: uids_there(west, name) for name in (KEPT, LEFT, BY_HAND, RESTORED, "gone")}
    assert all(before.values())
    with cut_off(west.api_node, api_cut(cluster)):
        has_reason(kept, "west", "ClusterUnreachable")
        delete(left)
        cluster.kubectl("delete", "namespace", elsewhere, "--wait=false")
        delete(by_hand)
        without_finalizer(by_hand)
        backup = backup_of(restored)
        delete(restored)
        without_finalizer(restored)
        wait_until(lambda: not restored.exists(), "it is gone")
        cluster.apply(backup, namespace=namespace)
        kill_container(worker)
        wait_until(lambda: not left.exists(), "the deletion does not wait for ever")
        wait_until(lambda: is_gone(cluster, elsewhere), "nor does that of its namespace")
        assert "left in cluster west (ClusterUnreachable)" in left.events()["ChildrenLeft"]
        assert operator.total(operator.has_taken_over().name, "jobs_left_behind_total", cluster="west") >= 1
        # Nothing of all this was heard there.
        assert {name: uids_there(west, name) for name in before} == before
        assert west.job(LEFT).pods()
    for name in (LEFT, BY_HAND, "gone"):
        wait_until(lambda name=name: not west.job(name).objects(), f"{name} is swept")  # type: ignore[misc]
    uid = cluster.get("dilocojobs", RESTORED, namespace)["metadata"]["uid"]
    wait_until(lambda: uids_there(west, RESTORED) == {uid}, "the restored job has its own objects")
    assert before[RESTORED] != {uid}
    assert uids_there(west, KEPT) == before[KEPT]
    restored.patch(suspend=False)
    restored.all_train(WEST)
    restored.train_on(WEST)


def test_a_namespace_that_is_deleted_takes_its_learners_with_it(
    cluster: Cluster, operator: ClusterOperator, namespace: str, west: Far
) -> None:
    assert operator.cluster is cluster
    going = f"{namespace}-going"
    charts.make_namespace(cluster, going)
    give_secret(cluster, going, west.secret())
    apply(cluster, going, reachable(cluster, "taken-along", region("west", "west"))).all_train(WEST)
    cluster.kubectl("delete", "namespace", going, timeout_seconds=WAIT_SECONDS)
    assert not west.job("taken-along").items("statefulsets,secrets")


def is_gone(cluster: Cluster, namespace: str) -> bool:
    return not cluster.items("namespaces", fields=f"metadata.name={namespace}")
