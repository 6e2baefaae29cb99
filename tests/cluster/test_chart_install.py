"""The chart as a user installs it: helm's notes work, and a release for one namespace."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from diloco.spec.status import JobStatus
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.chart import CHART, Release
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.cluster.cluster_shell import ClusterShell, of_namespace
from tests.support.cluster_jobs import WAIT_SECONDS, ClusterJob, apply, holds, manifest, new_namespace, pool
from tests.support.cluster_operator import ClusterOperator
from tests.support.documented_commands import commands_of_notes, goes_on_for_ever

pytestmark = pytest.mark.timeout(600)

IDLE = manifest("idle", {"name": "here", "pools": [pool("cpu")]}, tokens=10**6, suspend=True)


@pytest.fixture
def shell(bed: Bed, namespace: str, tmp_path: Path) -> ClusterShell:
    return ClusterShell(bed, of_namespace(bed.cluster, namespace), tmp_path)


@pytest.fixture(scope="module")
def restored(bed: Bed, images: Images, chart: Release) -> Iterator[Release]:
    """The release, which is restored with its own values after these tests."""
    yield chart
    charts.uninstall(bed, chart)
    charts.install(bed, images, chart)


@pytest.fixture
def nothing_installed(bed: Bed, restored: Release) -> None:
    """No release is installed; the definition of jobs is, as the chart leaves it."""
    charts.uninstall(bed, restored)


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[str]:
    """Another namespace."""
    yield from new_namespace(cluster, "elsewhere")


def walk(shell: ClusterShell, commands: list[str], job: str) -> None:
    """Run the commands that a reader would type."""
    for command in commands:
        if goes_on_for_ever(command):
            shell.follow(command, job)
        else:
            shell.run(command)


def deleted(cluster: Cluster, namespace: str, name: str) -> None:
    """Delete a job of the documentation afterwards, as it may be a large one."""
    cluster.kubectl("delete", "dilocojob", name, "--namespace", namespace, timeout_seconds=WAIT_SECONDS)
    job = ClusterJob(cluster, namespace, name)
    wait_until(lambda: not job.objects(), f"nothing is left of {name}", WAIT_SECONDS)


@pytest.mark.core
def test_the_notes_of_an_installation_work_and_its_test_passes(
    bed: Bed, chart: Release, shell: ClusterShell, namespace: str
) -> None:
    notes = charts.helm(bed, "get", "notes", chart.name, "--namespace", chart.namespace)
    commands = commands_of_notes(notes)
    assert [" ".join(command.split()[:1]) for command in commands] == ["kubectl", "helm", *["kubectl"] * 3]
    assert f"helm --namespace {chart.namespace} test {chart.name}" in commands
    walk(shell, commands, "first")
    job = ClusterJob(bed.cluster, namespace, "first")
    job.wait_for(lambda status: status.phase == "Pending" or holds(status, "Ready"), "the operator has seen it")
    deleted(bed.cluster, namespace, "first")


@pytest.mark.usefixtures("nothing_installed")
def test_a_release_for_one_namespace_needs_no_rights_outside_it(
    bed: Bed, images: Images, namespace: str, elsewhere: str
) -> None:
    cluster, team = bed.cluster, ClusterOperator(bed.cluster, Release("team", namespace))
    cluster.kubectl(
        *("create", "rolebinding", "owner", "--clusterrole=cluster-admin", "--user=owner", "--namespace", namespace)
    )
    values = {"crds": {"install": False}, "rbac": {"aggregate": False}, "watchNamespaces": [namespace]}
    given = charts.merged(charts.local_values(images), values)
    # As a user with all permissions in that namespace, and none elsewhere.
    flags = ("--namespace", namespace, "--kube-as-user", "owner", "--wait", "--timeout", "240s")
    charts.helm(bed, "install", "team", CHART, *flags, "--values", "-", stdin=yaml.safe_dump(given))
    try:
        mine, others = apply(cluster, namespace, IDLE), apply(cluster, elsewhere, IDLE)
        mine.wait_for(lambda status: holds(status, "Suspended"), "the job in its namespace is reconciled")
        operator = team.has_taken_over()
        assert len(mine.objects()) > 10
        assert others.objects() == []
        assert others.status() == JobStatus()
        assert team.forbidden(operator.name) == []
    finally:
        charts.uninstall(bed, team.release)
