"""``diloco chaos`` against a job on a real cluster: its learners come back, and the job beside it is left alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from tests.cluster.cluster_shell import ClusterShell, of_namespace
from tests.support.cluster_jobs import ClusterJob, apply, identities, manifest, new_namespace, of, pool

pytestmark = [pytest.mark.core, pytest.mark.timeout(900)]

VICTIM, WITNESS = "west/spot/0", "east/steady/0"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """One namespace for both jobs."""
    yield from new_namespace(cluster, "chaos")


@pytest.fixture
def shell(bed: Bed, namespace: str, tmp_path: Path) -> ClusterShell:
    return ClusterShell(bed, of_namespace(bed.cluster, namespace), tmp_path)


def job_named(cluster: Cluster, namespace: str, name: str) -> ClusterJob:
    regions = [{"name": "east", "pools": [pool("steady")]}, {"name": "west", "pools": [pool("spot")]}]
    return apply(cluster, namespace, manifest(name, *regions, tokens=10**12))


def test_a_region_that_is_killed_recovers_and_nothing_else_is_hit(
    cluster: Cluster, chart: Release, namespace: str, shell: ClusterShell, tmp_path: Path
) -> None:
    assert chart.namespace != namespace
    hit, beside = job_named(cluster, namespace, "hit"), job_named(cluster, namespace, "beside")
    before = hit.all_train(VICTIM, WITNESS)
    beside.all_train(VICTIM, WITNESS)
    others = identities(beside.pods())
    witness, victim = hit.pod(WITNESS), hit.pod(VICTIM)
    assert witness is not None
    assert victim is not None
    report = tmp_path / "chaos.json"
    told = shell.run(
        f"diloco chaos job/hit --namespace {namespace} --fault kill:west@at=1 --for 5s --settle 240 --seed 3 --yes "
        f"--json {report}"
    )
    assert "kill west: west/spot/0" in told
    (fault,) = json.loads(report.read_text(encoding="utf-8"))["faults"]
    assert fault["victims"] == [VICTIM]
    after = hit.all_train(VICTIM, WITNESS)
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    assert of(after, WITNESS).incarnation == of(before, WITNESS).incarnation
    back = hit.pod(VICTIM)
    assert back is not None
    assert back.uid != victim.uid
    still = hit.pod(WITNESS)
    assert still is not None
    assert identities([still]) == identities([witness])
    recovered = hit.wait_for_account(
        lambda account: any(one.learner == VICTIM for one in account.recoveries.latest), f"{VICTIM} has recovered"
    )
    assert recovered.goodput is not None
    assert recovered.merged is not None
    assert recovered.merged <= recovered.goodput
    assert identities(beside.pods()) == others
