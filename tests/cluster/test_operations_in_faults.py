"""What people do with jobs while a fault lasts: upgrade the operator, suspend, resume, finish and delete.

Each fault takes the learners of one node away and keeps them away until it is undone at the end of the test. Three jobs
have a learner there.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from diloco.spec.syncer_status import SyncerStatus
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    WAIT_SECONDS,
    ClusterJob,
    PodSeen,
    apply,
    bystanders,
    condition,
    cordoned,
    holds,
    is_degraded,
    lost_node,
    manifest,
    new_namespace,
    of,
    on,
    pool,
    shorten_grace,
)
from tests.support.cluster_operator import ClusterOperator

pytestmark = pytest.mark.timeout(1200)

WITNESS, VICTIM = "east/steady/0", "west/spot/0"
STEADY, SPOT = (0, 0), (1, 0)
"""Region and pool of each, by position."""
BUDGET = 100_000
"""The witness trains it in a minute, the victim alone in hours."""
SLOW = 0.02
AWAY = "example.com/going=away:NoExecute"


@dataclass(frozen=True)
class Jobs:
    """Each has its syncer on the node that stays."""

    kept: ClusterJob
    """Suspended and resumed. It has both learners."""
    finishing: ClusterJob
    """It has the victim only, until the witness is to finish it."""
    deleted: ClusterJob
    """It has the victim only."""

    def __iter__(self) -> Iterator[ClusterJob]:
        return iter((self.kept, self.finishing, self.deleted))


@dataclass(frozen=True)
class Scene:
    """The jobs, all of whose learners train."""

    cluster: Cluster
    node: str
    """Where the victims are; nothing else that matters is there."""
    jobs: Jobs


Fault = Callable[[Scene], AbstractContextManager[None]]


@contextmanager
def node_lost(scene: Scene) -> Iterator[None]:
    """The node does not answer. The operator replaces the pods, which find no other node."""
    before = {pod.uid for job in scene.jobs for pod in job.pods()}
    with lost_node(scene.cluster, scene.node):
        each_victim(scene, lambda pod: pod.leaving, "is to go")
        for job in scene.jobs:
            shorten_grace(job, job.pod_name(VICTIM))
        each_victim(scene, lambda pod: pod.uid not in before, "is replaced")
        yield


@contextmanager
def no_place_left(scene: Scene) -> Iterator[None]:
    """A taint evicts the pods, and no other node will do: they wait, as after a drain, a preemption or a scale-down."""
    scene.cluster.kubectl("taint", "node", scene.node, AWAY)
    try:
        each_victim(scene, lambda pod: not pod.node, "waits for a node")
        yield
    finally:
        scene.cluster.kubectl("taint", "node", scene.node, f"{AWAY}-")


@contextmanager
def out_of_memory(scene: Scene) -> Iterator[None]:
    """The containers are killed at their limit again and again."""
    enough = pool("spot")["resources"]
    for job in scene.jobs:
        job.set_resources(*SPOT, {**enough, "limits": {**enough["limits"], "memory": "64Mi"}})
    for job in scene.jobs:
        job.wait_for(lambda status: holds(status, "Degraded", "OutOfMemory"), "it is told")
    yield
    scene.jobs.kept.set_resources(*SPOT, enough)


def each_victim(scene: Scene, true: Callable[[PodSeen], bool], words: str) -> None:
    """Wait until it is true of each job's victim."""
    for job in scene.jobs:
        wait_until(partial(_holds_of_victim, job, true), f"the victim of {job.name} {words}", WAIT_SECONDS)


def _holds_of_victim(job: ClusterJob, true: Callable[[PodSeen], bool]) -> bool:
    pod = job.pod(VICTIM)
    return pod is not None and true(pod)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    yield from new_namespace(cluster, "operations")


@pytest.fixture
def scene(cluster: Cluster, operator: ClusterOperator, namespace: str) -> Iterator[Scene]:
    """New jobs for each fault, as two of them are over after it."""
    lost = cluster.workers[0]
    kept = next(node for node in cluster.nodes if node != lost)
    words = secrets.token_hex(2)

    def made(name: str, witnesses: int, tokens: int) -> ClusterJob:
        here, there = on(kept), on(lost)
        steady = pool("steady", witnesses, speed=0.1 if witnesses else 1.0, nodeSelector=here)
        regions = (
            {"name": "east", "pools": [steady]},
            {"name": "west", "pools": [pool("spot", speed=SLOW, nodeSelector=there)]},
        )
        body = manifest(f"{name}-{words}", *regions, tokens=tokens, failurePolicy={"lostPods": {"afterSeconds": 10}})
        body["spec"]["syncer"]["podTemplate"] = {"spec": {"nodeSelector": here}}
        return apply(cluster, namespace, body)

    with cordoned(cluster, lost):
        operator.kubectl("delete", "pods", f"--field-selector=spec.nodeName={lost}")
    jobs = Jobs(made("kept", 1, 10**12), made("finishing", 0, BUDGET), made("deleted", 0, 10**12))
    jobs.kept.all_train(WITNESS, VICTIM)
    for job in (jobs.finishing, jobs.deleted):
        job.all_train(VICTIM)
    yield Scene(cluster, lost, jobs)
    for job in jobs:
        job.kubectl("delete", "dilocojob", job.name, "--ignore-not-found", "--wait=false")


def upgraded(bed: Bed, images: Images, operator: ClusterOperator, job: ClusterJob) -> None:
    """Check that another operator takes over, and that the job's learner and syncer train on meanwhile."""
    others, old = bystanders(job, WITNESS), operator.has_taken_over()
    assert len(others) == 2
    charts.install(bed, images, operator.release, {"podLabels": {"release": secrets.token_hex(2)}})
    operator.has_taken_over(but=old.uid)
    job.goes_on(WITNESS, job.steps(WITNESS))
    assert bystanders(job, WITNESS) == others


def suspended_and_resumed(job: ClusterJob) -> SyncerStatus:
    """Check that it has no pods while it is suspended, and that the witness trains on afterwards."""
    before = job.account()
    assert before is not None
    job.patch(suspend=True)
    job.wait_for(lambda status: holds(status, "Suspended"), "it is suspended")
    assert not job.pods()
    job.patch(suspend=False)
    after = job.wait_for_account(
        lambda account: account.merged_tokens > before.merged_tokens, "the witness's work is merged again"
    )
    assert after.epoch > before.epoch
    assert of(after, WITNESS).steps >= of(before, WITNESS).steps
    return after


def finishes(job: ClusterJob) -> None:
    """Check that the witness brings it to its end, with a model that has learnt."""
    job.scale(*STEADY, learners=1)
    job.kubectl_wait("condition=Complete")
    status = job.status()
    assert status.reason == "BudgetReached"
    assert status.model is not None
    assert status.progress is not None
    assert status.progress.tokens >= BUDGET
    assert status.progress.loss is not None
    assert 0 < float(status.progress.loss) < 3.5  # an untrained model has 5.5
    wait_until(lambda: not job.pods(), "its pods go", WAIT_SECONDS)


def is_deleted(job: ClusterJob) -> None:
    """Check that the job and all that it had go while the fault lasts."""
    job.kubectl("delete", "dilocojob", job.name)
    wait_until(lambda: not job.objects(), "nothing is left of it", WAIT_SECONDS)


@pytest.mark.parametrize("fault", [node_lost, no_place_left, out_of_memory])
def test_jobs_do_what_is_asked_of_them_in_a_fault_that_lasts(
    fault: Fault, scene: Scene, bed: Bed, images: Images, operator: ClusterOperator
) -> None:
    kept = scene.jobs.kept
    before = kept.all_train(WITNESS, VICTIM)
    with fault(scene):
        upgraded(bed, images, operator, kept)
        is_deleted(scene.jobs.deleted)
        during = suspended_and_resumed(kept)
        finishes(scene.jobs.finishing)
        told = kept.wait_for(lambda status: is_degraded(status) and holds(status, "Ready"), "it trains and is degraded")
        assert VICTIM.rpartition("/")[0] in condition(told, "Degraded").message
        assert of(during, VICTIM).state != "Training"
    after = kept.all_train(WITNESS, VICTIM)
    assert of(after, VICTIM).steps >= of(before, VICTIM).steps
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    kept.wait_for_account(
        lambda account: of(account, VICTIM).merged_tokens > of(before, VICTIM).merged_tokens, "its work is merged"
    )
    kept.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")
