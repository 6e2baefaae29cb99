"""Learners with claims of their own, on a real cluster: the inner optimizer outlives pods; claims go or stay by policy.

The tests share one job whose budget no test reaches; the last one deletes it.
"""

import re

import pytest

from diloco_operator import labels
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import CHECKPOINT_STEPS, ClusterJob, apply, bystanders, manifest, pool, region

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(900)]

WITNESS, KEEPER = BOTH = "east/plain/0", "west/kept/0"
NEWCOMER = "west/kept/1"
KEPT = 1, 0
"""Region and pool of the learner with a claim, by position."""
WEST = region("west", pool("kept", storage={"size": "64Mi"}))


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, namespace: str) -> ClusterJob:
    return apply(cluster, namespace, manifest("stored", region("east", pool("plain")), WEST))


@pytest.fixture
def job(shared_job: ClusterJob) -> ClusterJob:
    """The job, with both of its learners training."""
    shared_job.all_train(*BOTH)
    return shared_job


def claims(job: ClusterJob) -> list[str]:
    """The names of the learners' claims that are not being deleted."""
    selector = f"{labels.JOB}={job.name},{labels.COMPONENT}={labels.LEARNER}"
    items = job.cluster.items("persistentvolumeclaims", job.namespace, selector)
    return sorted(one["metadata"]["name"] for one in items if "deletionTimestamp" not in one["metadata"])


def claim_of(job: ClusterJob, learner: str) -> str:
    return f"state-{job.pod_name(learner)}"


def taken_up(job: ClusterJob, learner: str) -> int:
    """The step of the checkpoint that a learner's process has gone on from."""
    log = "\n".join(job.log(job.pod_name(learner)))
    found = re.findall(r"continues from its own checkpoint of step (\d+)", log)
    assert len(found) == 1, log
    return int(found[0])


def replace_pod(job: ClusterJob, learner: str) -> None:
    """Delete a learner's pod, and wait until another one of its name is ready."""
    old = job.pod(learner)
    job.kubectl("delete", "pod", old.name)
    job.wait_for_pod(learner, lambda pod: pod.uid != old.uid and pod.ready, "is replaced")


def test_in_a_new_pod_a_learner_takes_its_optimizer_up_again(job: ClusterJob) -> None:
    step = job.goes_on(KEEPER, job.steps(KEEPER) + 2 * CHECKPOINT_STEPS)
    others = bystanders(job, WITNESS)
    replace_pod(job, KEEPER)
    job.all_train(*BOTH)
    # It wrote a last checkpoint when it was asked to stop.
    assert taken_up(job, KEEPER) >= step
    job.goes_on(KEEPER, taken_up(job, KEEPER))
    assert bystanders(job, WITNESS) == others
    # Only the pool that asks for it has claims.
    assert claims(job) == [claim_of(job, KEEPER)]


def test_in_a_new_pod_a_learner_without_a_claim_begins_without_moments(job: ClusterJob) -> None:
    job.goes_on(WITNESS, job.steps(WITNESS) + 2 * CHECKPOINT_STEPS)
    replace_pod(job, WITNESS)
    job.all_train(*BOTH)
    assert not any("own checkpoint" in line for line in job.log(job.pod_name(WITNESS)))


def test_after_a_suspension_it_goes_on_too(job: ClusterJob) -> None:
    step = job.goes_on(KEEPER, job.steps(KEEPER) + 2 * CHECKPOINT_STEPS)
    job.patch(suspend=True)
    job.kubectl_wait("condition=Suspended")
    assert claims(job) == [claim_of(job, KEEPER)]
    job.patch(suspend=False)
    job.all_train(*BOTH)
    assert taken_up(job, KEEPER) >= step


def test_a_smaller_pool_keeps_claims_or_not_as_the_policy_says(job: ClusterJob) -> None:
    both = sorted(claim_of(job, learner) for learner in (KEEPER, NEWCOMER))
    pod = job.pod(KEEPER)
    job.set_pool(*KEPT, learners=2)
    job.all_train(*BOTH, NEWCOMER)
    job.goes_on(NEWCOMER, 2 * CHECKPOINT_STEPS)
    job.set_pool(*KEPT, learners=1)
    wait_until(lambda: job.find_pod(NEWCOMER) is None, "its pod goes")
    assert claims(job) == both
    job.set_pool(*KEPT, learners=2)
    job.all_train(*BOTH, NEWCOMER)
    assert taken_up(job, NEWCOMER) >= 2 * CHECKPOINT_STEPS
    job.set_pool(*KEPT, storage__whenScaled="Delete")
    job.set_pool(*KEPT, learners=1)
    wait_until(lambda: claims(job) == both[:1], "its claim goes with it")
    job.set_pool(*KEPT, storage__whenScaled="Retain")
    assert job.pod(KEEPER).uid == pod.uid, "no pod is restarted for a policy"


def test_a_later_job_does_not_use_what_an_earlier_one_retained(job: ClusterJob) -> None:
    job.goes_on(KEEPER, 2 * CHECKPOINT_STEPS)
    kept = claims(job)
    job.set_pool(*KEPT, storage__whenDeleted="Retain")
    # Kubernetes deletes what its set owns.
    claim = ("persistentvolumeclaims", claim_of(job, KEEPER), job.namespace)
    wait_until(lambda: not job.cluster.get(*claim)["metadata"].get("ownerReferences"), "its set owns it no more")
    job.kubectl("delete", "dilocojob", job.name, "--cascade=foreground")
    wait_until(lambda: not job.pods(), "its pods go")
    assert claims(job) == kept
    # The syncer's claim is gone, so this is another training.
    later = apply(job.cluster, job.namespace, manifest(job.name, WEST))
    later.all_train(KEEPER)
    log = later.log(later.pod_name(KEEPER))
    told = [line for line in log if "ignoring" in line]
    assert len(told) == 1, log
    assert re.match(r"ignoring its own checkpoint of step \d+: it is of training [0-9a-f]{16}, this is ", told[0])
    later.goes_on(KEEPER, 2 * CHECKPOINT_STEPS)
    replace_pod(later, KEEPER)
    later.all_train(KEEPER)
    assert taken_up(later, KEEPER) >= 2 * CHECKPOINT_STEPS
    # By the later job's policy they go with it.
    later.delete()
    assert not claims(later)
