"""Where learners' pods go: to all nodes alike. A node on which different learners keep crashing is named.

The nodes of these clusters have no zone, as machines in a data centre often have none.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.waiting import WAIT_SECONDS, wait_until
from tests.support.cluster_jobs import ClusterJob, apply, bystanders, condition, manifest, pool, region
from tests.support.cluster_nodes import Nodes, cordoned, kill_container, on
from tests.support.job_manifests import pods

# A learner works once it has run for two minutes, and those that crash are started again with growing pauses.
pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(1200)]

FIRST, SECOND, STAYS = (f"east/spot/{index}" for index in range(3))


def nodes_of(job: ClusterJob, *learners: str) -> list[str]:
    """The learners' nodes; empty: it has none yet."""
    return ["" if pod is None else pod.node for pod in map(job.find_pod, learners)]


def test_learners_are_spread_over_nodes_that_have_no_zone(cluster: Cluster, namespace: str) -> None:
    # Without what keeps them off the syncer's node, which counts for more where there are two. They need not run.
    spot = pool("spot", learners=4, image="registry.invalid/none:1", **pods(affinity={"podAntiAffinity": {}}))
    job = apply(cluster, namespace, manifest("spread", region("east", spot)))
    learners = [f"east/spot/{index}" for index in range(4)]
    wait_until(lambda: all(nodes_of(job, *learners)), "all are scheduled")
    assert sorted(Counter(nodes_of(job, *learners)).values()) == [2, 2]
    job.delete()


@pytest.fixture
def job(cluster: Cluster, namespace: str, nodes: Nodes) -> Iterator[ClusterJob]:
    """Two of three learners on the node that breaks; the syncer is on the other one, so learners rather are not."""
    body = manifest("moves", region("east", pool("spot", learners=2)))
    body["spec"]["syncer"] |= on(nodes.kept)
    with cordoned(cluster, nodes.kept):
        job = apply(cluster, namespace, body)
        wait_until(lambda: nodes_of(job, FIRST, SECOND) == [nodes.lost] * 2, "two are there")
    with cordoned(cluster, nodes.lost):
        job.set_pool(0, 0, learners=3)
        wait_until(lambda: nodes_of(job, STAYS) == [nodes.kept], "one is elsewhere")
    job.all_train(FIRST, SECOND, STAYS)
    yield job
    job.delete()


def crash_on(job: ClusterJob, node: str) -> None:
    """Kill the learners that run there."""
    for pod in job.pods():
        if pod.node == node and pod.ready and not pod.leaving:
            try:
                kill_container(pod)
            except CommandFailedError:  # its container has ended meanwhile
                continue


def test_a_node_on_which_learners_crash_is_named(cluster: Cluster, job: ClusterJob, nodes: Nodes) -> None:
    others, broken = bystanders(job, STAYS), nodes.lost

    def is_named() -> bool:
        crash_on(job, broken)
        return f"east/spot/0, east/spot/1 keep crashing on {broken}" in condition(job.status(), "Degraded").message

    wait_until(is_named, "the node is named", 3 * WAIT_SECONDS)
    wait_until(lambda: "NodeSuspect" in job.events(), "an event says so")

    # As the message says: a person cordons the node and deletes the pods.
    with cordoned(cluster, broken):
        job.kubectl("delete", "pod", *map(job.pod_name, (FIRST, SECOND)), "--wait=false")
        moved = [nodes.kept] * 2
        wait_until(lambda: nodes_of(job, FIRST, SECOND) == moved, "both are on the other node", 3 * WAIT_SECONDS)
    job.all_train(FIRST, SECOND, STAYS)
    assert bystanders(job, STAYS) == others
    job.recovers()
