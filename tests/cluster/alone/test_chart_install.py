"""The chart as a user installs it: helm's notes work, and a release for one namespace."""

import pytest
import yaml

from diloco.spec.status.job import JobStatus
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.chart import CHART, Release
from testbed.kind.project_images import Images
from tests.cluster.cluster_shell import ClusterShell
from tests.support.cluster_jobs import ClusterJob, apply, holds, manifest
from tests.support.cluster_operator import ClusterOperator
from tests.support.documented_commands import commands_of_notes

pytestmark = pytest.mark.timeout(600)


def test_the_notes_of_an_installation_work_and_its_test_passes(
    bed: Bed, chart: Release, shell: ClusterShell, namespace: str
) -> None:
    notes = charts.helm(bed, "get", "notes", chart.name, "--namespace", chart.namespace)
    commands = commands_of_notes(notes)
    assert [" ".join(command.split()[:1]) for command in commands] == ["kubectl", "helm", *["kubectl"] * 3]
    assert f"helm --namespace {chart.namespace} test {chart.name}" in commands
    shell.walk(commands, "first")
    job = ClusterJob(bed.cluster, namespace, "first")
    job.wait_for(lambda status: status.phase == "Pending" or holds(status, "Ready"), "the operator has seen it")
    job.delete()


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
        mine, others = (apply(cluster, one, manifest("idle", suspend=True)) for one in (namespace, elsewhere))
        mine.becomes("Suspended")
        operator = team.has_taken_over()
        assert len(mine.objects()) > 10
        assert others.objects() == []
        assert others.status() == JobStatus()
        assert team.forbidden(operator.name) == []
    finally:
        charts.uninstall(bed, team.release)
