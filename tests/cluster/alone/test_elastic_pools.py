"""An elastic pool on nodes that take only some of its learners: the others wait without harm until there is room.

A resource of the test's own limits how many learners a node takes, whatever else runs there.
"""

import pytest

from diloco.spec.status.job import JobStatus, PoolStatus
from testbed.kind.clusters import Cluster
from tests.support.cluster_jobs import ClusterJob, apply, condition, holds, is_degraded, manifest, pool, region
from tests.support.cluster_nodes import ONE_SEAT, cordoned, seat, seated

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(900)]


def spot(status: JobStatus) -> PoolStatus:
    return next((each for one in status.regions for each in one.pools), PoolStatus(name="none"))


def shows(job: ClusterJob, training: int, waiting: int | None, words: str) -> JobStatus:
    """Wait until that many learners train, that many wait for a node, and nothing is wrong."""
    return job.wait_for(
        lambda now: (spot(now).training, spot(now).waiting) == (training, waiting) and not is_degraded(now), words
    )


def test_a_pool_uses_the_nodes_there_are_and_waits_for_more(cluster: Cluster, namespace: str) -> None:
    worker = cluster.workers[0]
    other = next(node for node in cluster.nodes if node != worker)
    wanted = manifest("elastic", region("here", pool("spot", 5, minimumLearners=1, resources=ONE_SEAT)))
    with seated(cluster, **{worker: 2, other: 1}):
        with cordoned(cluster, other):
            job = apply(cluster, namespace, wanted)
            two = shows(job, 2, 3, "two learners train, and three wait")
            assert (spot(two).minimum, spot(two).desired) == (1, 5)
            assert "3 of 5 learners of here/spot (minimum 1) unschedulable: " in (spot(two).message or "")
            assert holds(two, "Ready")
            assert two.learners.summary == "2/5"
            assert "Unschedulable" not in job.events()
            merged = job.account().merged_tokens
            job.wait_for_account(lambda now: now.merged_tokens > merged, "merges advance")
        three = shows(job, 3, 2, "the node that came is used")

        job.set_pool(0, 0, minimumLearners=4)
        told = job.becomes("Degraded", "Unschedulable")
        assert "2 of 5 learners of here/spot (minimum 4) unschedulable: " in condition(told, "Degraded").message
        assert holds(told, "Ready")
        job.set_pool(0, 0, minimumLearners=1)
        shows(job, 3, 2, "it has its minimum again")

        # A seat is taken away, and its learner with it, as when a spot node goes.
        seat(cluster, worker, 1)
        gone = next(pod for pod in job.pods() if pod.node == worker and "-spot-" in pod.name)
        job.kubectl("delete", "pod", gone.name, "--wait=false")
        fewer = shows(job, 2, 3, "the learner that lost its node waits, and is not missed")
        assert fewer.start_time == three.start_time
        job.delete()


def test_learners_without_a_node_start_in_the_next_pool_and_move_back(cluster: Cluster, namespace: str) -> None:
    worker = cluster.workers[0]
    pools = [pool("spot", 2, resources=ONE_SEAT, fallbackAfterSeconds=10), pool("steady", 0)]
    wanted = manifest("fallback", region("here", *pools))

    def show(job: ClusterJob, spot: tuple[int, int | None], steady: int, words: str) -> JobStatus:
        """Wait until so many learners train, and so many of the first pool do so in the second one."""
        return job.wait_for(
            lambda now: (
                [(one.training, one.fallback_learners) for each in now.regions for one in each.pools]
                == [spot, (steady, None)]
                and not is_degraded(now)
            ),
            words,
        )

    with seated(cluster, **{worker: 1}):
        job = apply(cluster, namespace, wanted)
        told = show(job, (1, 1), 1, "one trains in its pool, and one in the next")
        assert told.learners.summary == "2/2"
        job.tells("FallbackChanged")
        seat(cluster, worker, 2)
        show(job, (2, None), 0, "both train in their pool")
