"""Where learners' pods go: to all nodes alike, and away from a node on which different learners keep crashing.

The nodes of these clusters have no zone, as machines in a data centre often have none.
"""

from collections import Counter

import pytest

from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    WAIT_SECONDS,
    ClusterJob,
    apply,
    bystanders,
    cordoned,
    identities,
    is_degraded,
    kill_container,
    manifest,
    on,
    pool,
)

# A learner works once it has run for two minutes, and those that crash are started again with growing pauses.
pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(1200)]

FIRST, SECOND, STAYS = (f"east/spot/{index}" for index in range(3))
END_AVOIDANCE = '--patch={"status": {"avoidedNodes": []}}'


@pytest.fixture
def broken(cluster: Cluster) -> str:
    """The node on which learners keep crashing."""
    return cluster.workers[0]


@pytest.fixture
def kept(cluster: Cluster, broken: str) -> str:
    """The other node."""
    return next(node for node in cluster.nodes if node != broken)


def nodes_of(job: ClusterJob, *learners: str) -> list[str]:
    """The learners' nodes; empty: it has none yet."""
    pods = [job.pod(learner) for learner in learners]
    return ["" if pod is None else pod.node for pod in pods]


def test_learners_are_spread_over_nodes_that_have_no_zone(cluster: Cluster, namespace: str) -> None:
    # Without what keeps them off the syncer's node, which counts for more where there are two.
    east = {"name": "east", "pools": [pool("spot", learners=4, affinity={"podAntiAffinity": {}})]}
    job = apply(cluster, namespace, manifest("spread", east, tokens=10**12))
    learners = [f"east/spot/{index}" for index in range(4)]
    wait_until(lambda: all(nodes_of(job, *learners)), "all are scheduled", WAIT_SECONDS)
    assert sorted(Counter(nodes_of(job, *learners)).values()) == [2, 2]


@pytest.fixture
def job(cluster: Cluster, namespace: str, broken: str, kept: str) -> ClusterJob:
    """Two of three learners on the node that breaks; the syncer is on the other one, so learners rather are not."""
    body = manifest("moves", {"name": "east", "pools": [pool("spot", learners=2)]}, tokens=10**12)
    body["spec"]["syncer"]["podTemplate"] = {"spec": {"nodeSelector": on(kept)}}
    with cordoned(cluster, kept):
        job = apply(cluster, namespace, body)
        wait_until(lambda: nodes_of(job, FIRST, SECOND) == [broken] * 2, "two are there", WAIT_SECONDS)
    with cordoned(cluster, broken):
        job.scale(0, 0, learners=3)
        wait_until(lambda: nodes_of(job, STAYS) == [kept], "one is elsewhere", WAIT_SECONDS)
    job.all_train(FIRST, SECOND, STAYS)
    return job


def crash_on(job: ClusterJob, node: str) -> None:
    """Kill the learners that run there."""
    for pod in job.pods():
        if pod.node == node and pod.ready and not pod.leaving:
            try:
                kill_container(pod)
            except CommandFailedError:  # its container has ended meanwhile
                continue


def test_learners_that_crash_on_one_node_move_to_another_one(job: ClusterJob, broken: str, kept: str) -> None:
    others = bystanders(job, STAYS)
    assert len(others) == 2

    def moved() -> bool:
        crash_on(job, broken)
        return nodes_of(job, FIRST, SECOND) == [kept] * 2

    wait_until(moved, "both are on the other node", 3 * WAIT_SECONDS)
    job.all_train(FIRST, SECOND, STAYS)
    assert {"NodeAvoided", "LearnerMoved"} <= job.reasons()
    (avoided,) = job.status().avoided_nodes
    assert (avoided.node, avoided.learners) == (broken, ("east/spot/0", "east/spot/1"))
    assert bystanders(job, STAYS) == others

    # A person has repaired the node. Nobody restarts because of that.
    before = identities(job.pods())
    job.kubectl("patch", "dilocojob", job.name, "--subresource=status", "--type=merge", END_AVOIDANCE)
    job.scale(0, 0, learners=4)
    job.all_train(FIRST, SECOND, STAYS, "east/spot/3")
    assert nodes_of(job, "east/spot/3") == [broken]
    assert {name: seen for name, seen in identities(job.pods()).items() if name in before} == before
    job.wait_for(lambda status: not status.avoided_nodes and not is_degraded(status), "nothing is avoided any more")
