"""Learners with claims of their own, on a real cluster: the inner optimizer outlives pods; claims go or stay by policy.

The tests share one job whose budget no test reaches, but for the last, which deletes jobs.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    CHECKPOINT_STEPS,
    WAIT_SECONDS,
    ClusterJob,
    PodSeen,
    apply,
    bystanders,
    manifest,
    new_namespace,
    pool,
)

pytestmark = pytest.mark.timeout(900)

WITNESS, KEEPER = "east/plain/0", "west/kept/0"
BOTH = WITNESS, KEEPER
NEWCOMER = "west/kept/1"
KEPT = 1, 0
"""Region and pool of the learner with a claim, by position."""
STORAGE = {"size": "64Mi"}


def stored(name: str, **storage: Any) -> dict[str, Any]:
    """A job of two learners, one of which has a claim."""
    regions = [
        {"name": "east", "pools": [pool("plain")]},
        {"name": "west", "pools": [pool("kept", storage=STORAGE | storage)]},
    ]
    return manifest(name, *regions, tokens=10**12)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """One namespace for all tests of this file."""
    yield from new_namespace(cluster, "learner-storage")


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, chart: Release, namespace: str) -> ClusterJob:
    """The job, with the operator."""
    del chart
    return apply(cluster, namespace, stored("stored"))


@pytest.fixture
def job(shared_job: ClusterJob) -> ClusterJob:
    """The job, with both of its learners training."""
    shared_job.all_train(*BOTH)
    return shared_job


def present(pod: PodSeen | None) -> PodSeen:
    assert pod is not None
    return pod


def claim_of(job: ClusterJob, learner: str) -> str:
    return f"state-{job.pod_name(learner)}"


def taken_up(job: ClusterJob, learner: str) -> int:
    """The step of the checkpoint that a learner's process has gone on from."""
    log = "\n".join(job.log(job.pod_name(learner)))
    found = re.findall(r"continues from its own checkpoint of step (\d+)", log)
    assert len(found) == 1, log
    return int(found[0])


def replaced(job: ClusterJob, pod: PodSeen) -> PodSeen:
    """Delete a pod, and wait until another one of its name is ready."""
    job.kubectl("delete", "pod", pod.name)

    def another() -> PodSeen | None:
        return next((one for one in job.pods() if one.name == pod.name and one.uid != pod.uid and one.ready), None)

    return present(wait_until(another, f"{pod.name} is replaced", WAIT_SECONDS))


def test_only_the_pool_that_asks_for_it_has_claims(job: ClusterJob) -> None:
    assert job.claims() == [claim_of(job, KEEPER)]


def test_in_a_new_pod_a_learner_takes_its_optimizer_up_again(job: ClusterJob) -> None:
    step = job.goes_on(KEEPER, job.steps(KEEPER) + 2 * CHECKPOINT_STEPS)
    others, claims = bystanders(job, WITNESS), job.claims()
    replaced(job, present(job.pod(KEEPER)))
    job.all_train(*BOTH)
    # It wrote a last checkpoint when it was asked to stop.
    assert taken_up(job, KEEPER) >= step
    job.goes_on(KEEPER, taken_up(job, KEEPER))
    assert (bystanders(job, WITNESS), job.claims()) == (others, claims)


def test_in_a_new_pod_a_learner_without_a_claim_begins_without_moments(job: ClusterJob) -> None:
    job.goes_on(WITNESS, job.steps(WITNESS) + 2 * CHECKPOINT_STEPS)
    replaced(job, present(job.pod(WITNESS)))
    job.all_train(*BOTH)
    assert not any("own checkpoint" in line for line in job.log(job.pod_name(WITNESS)))


def test_after_a_suspension_it_goes_on_too(job: ClusterJob) -> None:
    step = job.goes_on(KEEPER, job.steps(KEEPER) + 2 * CHECKPOINT_STEPS)
    job.patch(suspend=True)
    job.kubectl_wait("condition=Suspended")
    assert job.claims() == [claim_of(job, KEEPER)]
    job.patch(suspend=False)
    job.all_train(*BOTH)
    assert taken_up(job, KEEPER) >= step


def test_a_smaller_pool_keeps_claims_or_not_as_the_policy_says(job: ClusterJob) -> None:
    both = sorted(claim_of(job, learner) for learner in (KEEPER, NEWCOMER))
    pod = present(job.pod(KEEPER))
    job.scale(*KEPT, learners=2)
    job.all_train(*BOTH, NEWCOMER)
    job.goes_on(NEWCOMER, 2 * CHECKPOINT_STEPS)
    job.scale(*KEPT, learners=1)
    wait_until(lambda: job.pod(NEWCOMER) is None, "its pod goes", WAIT_SECONDS)
    assert job.claims() == both
    job.scale(*KEPT, learners=2)
    job.all_train(*BOTH, NEWCOMER)
    assert taken_up(job, NEWCOMER) >= 2 * CHECKPOINT_STEPS
    job.set_claims(*KEPT, whenScaled="Delete")
    job.scale(*KEPT, learners=1)
    wait_until(lambda: job.claims() == both[:1], "its claim goes with it", WAIT_SECONDS)
    job.set_claims(*KEPT, whenScaled="Retain")
    assert present(job.pod(KEEPER)).uid == pod.uid, "no pod is restarted for a policy"


def test_a_deleted_job_takes_its_claims_along(job: ClusterJob) -> None:
    job.kubectl("delete", "dilocojob", job.name, "--cascade=foreground")
    wait_until(lambda: not job.claims(), "the claims go", WAIT_SECONDS)


def test_a_later_job_does_not_use_what_an_earlier_one_retained(
    cluster: Cluster, chart: Release, namespace: str
) -> None:
    del chart
    earlier = apply(cluster, namespace, stored("again", whenDeleted="Retain"))
    earlier.all_train(*BOTH)
    earlier.goes_on(KEEPER, 2 * CHECKPOINT_STEPS)
    claims = earlier.claims()
    earlier.kubectl("delete", "dilocojob", "again", "--cascade=foreground")
    wait_until(lambda: not earlier.pods(), "its pods go", WAIT_SECONDS)
    assert earlier.claims() == claims
    # Its syncer's claim is gone, so this is another training.
    later = apply(cluster, namespace, stored("again"))
    later.all_train(*BOTH)
    log = later.log(later.pod_name(KEEPER))
    told = [line for line in log if "ignoring" in line]
    assert len(told) == 1, log
    assert re.match(r"ignoring its own checkpoint of step \d+: it is of training [0-9a-f]{16}, this is ", told[0])
    later.goes_on(KEEPER, 2 * CHECKPOINT_STEPS)
    replaced(later, present(later.pod(KEEPER)))
    later.all_train(*BOTH)
    assert taken_up(later, KEEPER) >= 2 * CHECKPOINT_STEPS
    later.kubectl("delete", "dilocojob", "again", "--cascade=foreground")
    wait_until(lambda: not later.claims(), "by the later job's policy they go", WAIT_SECONDS)
