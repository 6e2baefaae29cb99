"""The README of examples/two-clusters as a reader follows it: every command, from preparing a cluster to the model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kind import local_registry
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import REPOSITORY, Images
from testbed.kind.waiting import WAIT_SECONDS, wait_until
from tests.cluster.across.conftest import install_operator
from tests.cluster.cluster_shell import ClusterShell, checkout, of_contexts
from tests.support.cluster_jobs import ClusterJob
from tests.support.cluster_operator import ClusterOperator
from tests.support.documented_commands import sections, statements, walk

pytestmark = pytest.mark.timeout(900)

README = (REPOSITORY / "examples/two-clusters/README.md").read_text(encoding="utf-8")
HOME, WEST = "training", "learners"
"""Its namespaces."""


@pytest.fixture
def shell(
    bed: Bed, images: Images, operator: ClusterOperator, west_cluster: Cluster, tmp_path: Path
) -> Iterator[ClusterShell]:
    """In a copy of the repository, with a registry. Whatever the commands leave is removed."""
    assert operator.cluster is bed.cluster
    directory = checkout(tmp_path / "here")
    remove = ("delete", "namespace", "--ignore-not-found", "--wait=true")
    nodes = (*bed.cluster.nodes, *west_cluster.nodes)
    with local_registry.running(bed.cache, nodes):
        yield ClusterShell(bed, of_contexts({"home": bed.cluster, "west": west_cluster}), tmp_path, directory)
    install_operator(bed, images)
    bed.cluster.kubectl(*remove, HOME, timeout_seconds=WAIT_SECONDS)
    west_cluster.kubectl(*remove, WEST, timeout_seconds=WAIT_SECONDS)


@walk
def test_every_command_works_from_preparing_a_cluster_to_the_model(
    shell: ClusterShell, bed: Bed, west_cluster: Cluster, tmp_path: Path
) -> None:
    steps = sections(README)
    assert list(steps) == ["Once", "Prepare west", "Train", "Get the model", "Clean up"]
    shell.run(steps["Once"])
    said = shell.run(steps["Prepare west"])
    assert "serviceaccounts/token" in said
    job, there = ClusterJob(bed.cluster, HOME, "two-clusters"), ClusterJob(west_cluster, WEST, "two-clusters")
    trained: set[str] = set()

    def look() -> None:
        account = job.account_now()
        trained.update(one.id for one in account.learners if one.merged_tokens) if account is not None else None

    shell.run(steps["Train"], look)
    assert trained == {"east/cpu/0", "west/cpu/0"}
    status = job.status()
    assert (status.phase, status.reason) == ("Complete", "BudgetReached")
    regions = [(one.name, one.cluster, one.reason) for one in status.regions]
    assert regions == [("east", None, None), ("west", "west", None)]
    wait_until(lambda: not (job.pods() or there.pods()), "its pods go")
    said = shell.run(steps["Get the model"])
    assert (tmp_path / "here" / "model.safetensors").stat().st_size > 0
    assert "loss" in said
    assert {one.partition("/")[0] for one in there.objects()} >= {"statefulset", "configmap"}
    delete, *namespaces = statements(steps["Clean up"])
    shell.run(delete)
    # The job is gone only after what it had elsewhere.
    assert not there.objects()
    wait_until(lambda: not job.objects(), "nothing is left at home")
    for statement in namespaces:
        shell.run(statement)
