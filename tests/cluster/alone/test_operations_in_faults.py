"""What people do with jobs while a fault lasts: upgrade the operator, suspend, resume, finish and delete.

Each fault takes the learners of one node away and keeps them away until it is undone at the end of the test.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from diloco.spec.status.syncer import SyncerStatus
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    ENDLESS,
    ClusterJob,
    PodSeen,
    apply,
    bystanders,
    condition,
    holds,
    is_degraded,
    manifest,
    of,
    pool,
    region,
)
from tests.support.cluster_nodes import (
    BOTH,
    SPOT,
    STEADY,
    VICTIM,
    WITNESS,
    lost_node,
    nodes_without_operator,
    on,
    shorten_grace,
    tainted,
)
from tests.support.cluster_operator import ClusterOperator

pytestmark = pytest.mark.timeout(1200)

BUDGET = 60_000
"""The witness trains it in half a minute, the victim alone in a quarter of an hour."""
SLOW = 0.02


Fault = Callable[[Cluster, str, tuple[ClusterJob, ...]], AbstractContextManager[None]]
"""Takes learners of these jobs away, those of a node; of the first job until it is undone."""


@contextmanager
def node_lost(cluster: Cluster, node: str, jobs: tuple[ClusterJob, ...]) -> Iterator[None]:
    """The node does not answer. The operator replaces the pods, which find no other node."""
    before = {pod.uid for job in jobs for pod in job.pods()}
    with lost_node(cluster, node):
        each_victim(jobs, lambda pod: pod.leaving, "is to go")
        for job in jobs:
            shorten_grace(job, job.pod_name(VICTIM))
        each_victim(jobs, lambda pod: pod.uid not in before, "is replaced")
        yield


@contextmanager
def no_place_left(cluster: Cluster, node: str, jobs: tuple[ClusterJob, ...]) -> Iterator[None]:
    """A taint evicts the pods, and no other node will do: they wait, as after a drain, a preemption or a scale-down."""
    with tainted(cluster, node):
        each_victim(jobs, lambda pod: not pod.node, "waits for a node")
        yield


@contextmanager
def out_of_memory(_cluster: Cluster, _node: str, jobs: tuple[ClusterJob, ...]) -> Iterator[None]:
    """The containers are killed at their limit again and again."""
    enough = pool("spot")["resources"]
    for job in jobs:
        job.set_pool(*SPOT, resources={**enough, "limits": {**enough["limits"], "memory": "64Mi"}})
    try:
        for job in jobs:
            job.becomes("Degraded", "OutOfMemory")
        yield
    finally:
        jobs[0].set_pool(*SPOT, resources=enough)


def each_victim(jobs: tuple[ClusterJob, ...], true: Callable[[PodSeen], bool], words: str) -> None:
    """Wait until it is true of each job's victim."""
    for job in jobs:
        job.wait_for_pod(VICTIM, true, words)


@pytest.fixture(scope="module")
def made(cluster: Cluster, namespace: str) -> Callable[[str, int, int], ClusterJob]:
    """Makes a job with so many witnesses and so many tokens to train."""
    kept, lost = on(next(node for node in cluster.nodes if node != cluster.workers[0])), on(cluster.workers[0])

    def make(name: str, witnesses: int, tokens: int) -> ClusterJob:
        if witnesses:
            steady, spot = pool("steady", witnesses, **kept), pool("spot", **lost)
        else:
            steady, spot = pool("steady", 0, speed=1.0, **kept), pool("spot", speed=SLOW, **lost)
            # Otherwise a witness counts as at most four times as fast as the victim.
            steady["speed"], spot["speed"] = 1.0, SLOW
        regions = region("east", steady), region("west", spot)
        pace: dict[str, int] = {} if witnesses else {"interval": 8}
        soon = {"lostPods": {"afterSeconds": 10}}
        body = manifest(name, *regions, tokens=tokens, failurePolicy=soon, **pace)
        body["spec"]["syncer"] |= kept
        return apply(cluster, namespace, body)

    return make


@pytest.fixture(scope="module")
def kept(made: Callable[[str, int, int], ClusterJob]) -> ClusterJob:
    """It outlives every fault."""
    return made("kept", 1, ENDLESS)


def node_of_victims(operator: ClusterOperator) -> str:
    """Nothing else that matters is there."""
    return nodes_without_operator(operator.cluster, operator.release.namespace).lost


def upgraded(bed: Bed, images: Images, operator: ClusterOperator, job: ClusterJob) -> None:
    """Check that another operator takes over, and that the job's learner and syncer train on meanwhile."""
    others, old = bystanders(job, WITNESS), operator.has_taken_over()
    charts.install(bed, images, operator.release, {"podLabels": {"release": secrets.token_hex(2)}})
    operator.has_taken_over(but=old.uid)
    job.goes_on(WITNESS)
    assert bystanders(job, WITNESS) == others


def suspended_and_resumed(job: ClusterJob) -> SyncerStatus:
    """Check that it has no pods while it is suspended, and that the witness trains on afterwards."""
    before = job.account()
    job.patch(suspend=True)
    job.becomes("Suspended")
    assert not job.pods()
    job.patch(suspend=False)
    after = job.wait_for_account(
        lambda account: account.merged_tokens > before.merged_tokens, "the witness's work is merged again"
    )
    assert after.epoch > before.epoch
    assert of(after, WITNESS).steps >= of(before, WITNESS).steps
    return after


def has_finished(job: ClusterJob) -> None:
    """Check that the witness brings it to its end, with a model that has learnt."""
    job.kubectl_wait("condition=Complete")
    status = job.status()
    assert status.reason == "BudgetReached"
    assert status.model is not None
    assert status.progress is not None
    assert status.progress.tokens >= BUDGET
    assert status.progress.loss is not None
    assert 0 < float(status.progress.loss) < 3.5  # an untrained model has 5.5
    wait_until(lambda: not job.pods(), "its pods go")


def test_jobs_do_what_is_asked_of_them_while_a_node_is_lost(
    bed: Bed,
    images: Images,
    operator: ClusterOperator,
    kept: ClusterJob,
    made: Callable[[str, int, int], ClusterJob],
) -> None:
    node = node_of_victims(operator)
    words = secrets.token_hex(2)  # it may be run again
    finishing, deleted = made(f"finishing-{words}", 0, BUDGET), made(f"deleted-{words}", 0, ENDLESS)
    before = kept.all_train(*BOTH)
    for job in (finishing, deleted):
        job.all_train(VICTIM)
    with node_lost(bed.cluster, node, (kept, finishing, deleted)):
        # Its learner starts while the others are dealt with.
        finishing.set_pool(*STEADY, learners=1)
        upgraded(bed, images, operator, kept)
        deleted.delete()
        goes_through(kept)
        has_finished(finishing)
    goes_on_as_before(kept, before)


@pytest.mark.parametrize("fault", [no_place_left, out_of_memory])
def test_a_job_is_suspended_and_resumed_in_a_fault_that_lasts(
    fault: Fault, operator: ClusterOperator, kept: ClusterJob
) -> None:
    node = node_of_victims(operator)
    before = kept.all_train(*BOTH)
    with fault(operator.cluster, node, (kept,)):
        goes_through(kept)
    goes_on_as_before(kept, before)


def goes_through(kept: ClusterJob) -> None:
    """Check that it is suspended and resumed, trains without the victim, and says so."""
    during = suspended_and_resumed(kept)
    told = kept.wait_for(lambda status: is_degraded(status) and holds(status, "Ready"), "it trains and is degraded")
    assert VICTIM.rpartition("/")[0] in condition(told, "Degraded").message
    assert of(during, VICTIM).state != "Training"


def goes_on_as_before(kept: ClusterJob, before: SyncerStatus) -> None:
    """Check that the victim is back once the fault is undone, and that nothing is wrong any more."""
    after = kept.all_train(*BOTH)
    assert of(after, VICTIM).steps >= of(before, VICTIM).steps
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    kept.merges(VICTIM, since=before)
    kept.recovers()
