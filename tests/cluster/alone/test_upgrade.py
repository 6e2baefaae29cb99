"""An upgrade keeps a job: from the commit that wrote a version's golden files to the checkout, by the chart.

The running job keeps its images, and its files are read by the new ones once it is resumed.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kind import chart as charts
from testbed.kind import image_transfer, project_images
from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run
from testbed.kind.project_images import REPOSITORY, Images
from tests.support.cluster_jobs import ClusterJob, apply, identities, manifest, of
from tests.support.cluster_operator import ClusterOperator
from tests.support.golden import GOLDEN, VERSIONS

pytestmark = pytest.mark.timeout(900)

LEARNER = "here/cpu/0"


@pytest.fixture(params=VERSIONS)
def earlier(
    request: pytest.FixtureRequest, bed: Bed, images: Images, chart: Release, tmp_path: Path
) -> Iterator[Images]:
    """The operator of a version's commit is installed, in place of the checkout's, and the nodes have its images."""
    commit = run("git", "log", "-1", "--format=%H", "--", GOLDEN / request.param, cwd=REPOSITORY).strip()
    run("git", "archive", "--output", tmp_path / "commit.tar", commit, cwd=REPOSITORY)
    with tarfile.open(tmp_path / "commit.tar") as archive:
        archive.extractall(tmp_path / "commit", filter="data")
    old = project_images.build(tmp_path / "commit")
    if old == images:
        pytest.skip(f"nothing in the images has changed since the files of {request.param} were written")
    with bed.cache.lock(project_images.LOCK):
        image_transfer.give((old.operator, old.trainer), bed.cluster.nodes, bed.saved_images)
    charts.uninstall(bed, chart)
    charts.install(bed, old, chart, folder=tmp_path / "commit" / charts.FOLDER)
    yield old
    charts.install(bed, images, chart)


@pytest.fixture
def job(cluster: Cluster, namespace: str, earlier: Images) -> ClusterJob:
    """A job that the operator of that commit runs."""
    made = apply(cluster, namespace, manifest("kept"))
    made.all_train(LEARNER)
    assert images_of(made) == {earlier.trainer}
    return made


def images_of(job: ClusterJob) -> set[str]:
    """The images of its pods' containers."""
    return {container["image"] for one in job.items("pods") for container in one["spec"]["containers"]}


def test_a_job_of_an_earlier_version_trains_on_after_an_upgrade(
    bed: Bed, cluster: Cluster, images: Images, chart: Release, job: ClusterJob
) -> None:
    operator = ClusterOperator(cluster, chart)
    old, pods, steps = operator.has_taken_over(), identities(job.pods()), job.steps(LEARNER)
    charts.install(bed, images, chart)
    operator.has_taken_over(but=old.uid)
    before = job.wait_for_account(lambda account: account.merged_tokens > 0, "work is merged")
    job.goes_on(LEARNER, steps)
    step = before.syncer_step
    job.wait_for(lambda status: status.progress is not None and status.progress.step > step, "its status goes on")
    assert identities(job.pods()) == pods
    job.patch(suspend=True)
    job.becomes("Suspended")
    job.patch(suspend=False)
    job.all_train(LEARNER)
    after = job.wait_for_account(lambda account: account.merged_tokens > before.merged_tokens, "merges go on")
    assert images_of(job) == {images.trainer}
    assert after.syncer_step >= before.syncer_step
    assert of(after, LEARNER).steps >= of(before, LEARNER).steps
