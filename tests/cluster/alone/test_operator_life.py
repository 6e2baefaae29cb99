"""What happens to the operator does not affect jobs: it is killed, upgraded, run twice, removed and installed again.

One job trains through all of it. None of its objects is created, deleted, written or restarted.
"""

from collections.abc import Iterator

import pytest

from diloco_operator.options import JOBS_LEASE
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, apply, apply_idle, manifest
from tests.support.cluster_nodes import kill_container
from tests.support.cluster_operator import ClusterOperator, Untouched

pytestmark = pytest.mark.timeout(600)

LEARNER = "here/cpu/0"
CRD = "customresourcedefinition/dilocojobs.diloco.dev"
SECOND = {"crds": {"install": False}, "rbac": {"aggregate": False}}
"""What helm must be told before it installs the operator a second time."""


@pytest.fixture(scope="module")
def job(cluster: Cluster, operator: ClusterOperator, namespace: str) -> ClusterJob:
    """A job that trains until it is stopped."""
    looks_after_it = operator.wait_for(lambda pod: pod.ready, "there is an operator")
    forbidden = operator.forbidden(looks_after_it.name)
    made = apply(cluster, namespace, manifest("trains-on"))
    made.all_train(LEARNER)
    made.becomes("Ready")
    assert operator.forbidden(looks_after_it.name) == forbidden
    return made


@pytest.fixture
def untouched(job: ClusterJob) -> Iterator[None]:
    """Check after the test that the job is what it was at the beginning, and has trained on."""
    before, steps = Untouched.of(job), job.steps(LEARNER)
    assert len(before.children) == 11
    yield
    assert Untouched.of(job) == before
    job.goes_on(LEARNER, steps)
    assert Untouched.of(job) == before


@pytest.mark.usefixtures("untouched")
def test_a_killed_operator_comes_back_to_its_jobs_and_to_newer_ones(
    cluster: Cluster, namespace: str, operator: ClusterOperator
) -> None:
    first = operator.has_taken_over()
    kill_container(first)
    late = apply(cluster, namespace, manifest("late", suspend=True))
    # It did not release the Lease, so after a restart it waits for it.
    again = operator.wait_for(lambda pod: pod.restarts == first.restarts + 1 and pod.ready, "it is started again")
    assert again.uid == first.uid
    operator.kubectl("delete", "pod", again.name, "--grace-period=0", "--force")
    second = operator.has_taken_over(but=again.uid)
    assert operator.holder() == second.name
    late.becomes("Suspended")
    late.delete()


@pytest.mark.usefixtures("untouched")
def test_an_upgrade_with_another_default_image_is_for_new_jobs_only(
    bed: Bed, cluster: Cluster, images: Images, namespace: str, operator: ClusterOperator
) -> None:
    before = operator.has_taken_over()
    image = {"repository": "registry.example/trainer", "tag": "next"}
    values = {"trainer": {"image": image}, "operator": {"resyncSeconds": 30, "pollSeconds": 3}, "podLabels": {"a": "b"}}
    charts.install(bed, images, operator.release, values)
    operator.has_taken_over(but=before.uid)
    new = apply_idle(cluster, namespace, manifest("new"))
    (made,) = new.items("statefulsets")
    images_of_it = [container["image"] for container in made["spec"]["template"]["spec"]["containers"]]
    assert images_of_it == ["registry.example/trainer:next"]
    new.delete()
    charts.install(bed, images, operator.release)


@pytest.mark.usefixtures("untouched")
def test_the_second_operator_of_a_deployment_waits_until_the_first_is_gone(operator: ClusterOperator) -> None:
    first = operator.has_taken_over()
    operator.kubectl("scale", "deployment", operator.deployment, "--replicas=2")
    second = operator.wait_for(lambda pod: pod.uid != first.uid and pod.ready, "a second one is ready")
    told = operator.says(second.name, "/readyz")
    assert told.startswith(f"standing by: lease {operator.release.namespace}/diloco-operator is held by {first.name}_")
    assert operator.writes(second.name) == 0
    assert operator.holder() == first.name
    operator.kubectl("delete", "pod", first.name)
    third = operator.has_taken_over(but=first.uid)
    assert operator.holder() == third.name
    operator.kubectl("scale", "deployment", operator.deployment, "--replicas=1")
    wait_until(lambda: len(operator.pods()) == 1, "one is left")


@pytest.mark.usefixtures("untouched")
def test_a_second_release_is_refused_by_helm_or_waits_for_the_lease(
    bed: Bed, images: Images, operator: ClusterOperator
) -> None:
    first = operator.has_taken_over()
    second = ClusterOperator(bed.cluster, Release("by-mistake", operator.release.namespace))
    with pytest.raises(
        CommandFailedError, match=r"dilocojobs\.diloco\.dev.*cannot be imported into the current release"
    ):
        charts.install(bed, images, second.release)
    charts.install(bed, images, second.release, SECOND)
    try:
        waiting = second.wait_for(lambda pod: pod.ready, "the second one is ready")
        assert second.says(waiting.name, "/readyz").startswith("standing by: lease ")
        assert second.writes(waiting.name) == 0
        assert operator.holder() == first.name
    finally:
        charts.uninstall(bed, second.release)
    assert operator.works(first.name)


@pytest.mark.usefixtures("untouched")
def test_jobs_train_without_an_operator_and_a_new_one_takes_them_over(
    bed: Bed, images: Images, operator: ClusterOperator, job: ClusterJob
) -> None:
    ended = apply_idle(job.cluster, job.namespace, manifest("ended"))
    charts.uninstall(bed, operator.release)
    wait_until(lambda: not operator.all_pods(), "no operator is left")
    lease = ("get", "lease", JOBS_LEASE, "--namespace", job.namespace, "--ignore-not-found")
    wait_until(lambda: not job.cluster.kubectl(*lease), "its Lease is deleted with its rights")
    assert "Established" in job.cluster.kubectl("get", CRD, "--output", "jsonpath={.status.conditions[*].type}")
    status = job.status()
    assert status.progress is not None
    step = status.progress.step
    job.wait_for_account(lambda account: account.syncer_step > step, "merges go on")
    assert job.status() == status
    # There is no finalizer, so objects can be deleted without it.
    ended.delete()
    charts.install(bed, images, operator.release)
    operator.has_taken_over()
    job.wait_for(lambda now: now.progress is not None and now.progress.step > step, "its status goes on")
