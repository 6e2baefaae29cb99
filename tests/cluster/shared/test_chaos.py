"""``diloco chaos`` against a job on a real cluster: its learners come back, and the job beside it is left alone."""

import json
from pathlib import Path

import pytest

from testbed.kind.clusters import Cluster
from tests.cluster.cluster_shell import ClusterShell
from tests.support.cluster_jobs import apply, identities, manifest, of, pool, region
from tests.support.cluster_nodes import BOTH, VICTIM, WITNESS

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(900)]

WEST = region("west", pool("spot"))


def test_a_region_that_is_killed_recovers_and_nothing_else_is_hit(
    cluster: Cluster, namespace: str, shell: ClusterShell, tmp_path: Path
) -> None:
    hit = apply(cluster, namespace, manifest("hit", region("east", pool("steady")), WEST))
    beside = apply(cluster, namespace, manifest("beside", WEST))
    before = hit.all_train(*BOTH)
    beside.all_train(VICTIM)
    others = identities(beside.pods())
    witness, victim = hit.pod(WITNESS), hit.pod(VICTIM)
    report = tmp_path / "chaos.json"
    told = shell.run(
        f"diloco chaos job/hit --namespace {namespace} --fault kill:west@at=1 --for 5s --settle 240 --seed 3 --yes "
        f"--json {report}"
    )
    assert f"kill west: {VICTIM}" in told
    (fault,) = json.loads(report.read_text(encoding="utf-8"))["faults"]
    assert fault["victims"] == [VICTIM]
    after = hit.all_train(*BOTH)
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    assert of(after, WITNESS).incarnation == of(before, WITNESS).incarnation
    assert hit.pod(VICTIM).uid != victim.uid
    assert identities([hit.pod(WITNESS)]) == identities([witness])
    recovered = hit.wait_for_account(
        lambda account: any(one.learner == VICTIM for one in account.recoveries.latest), f"{VICTIM} has recovered"
    )
    assert recovered.goodput is not None
    assert recovered.merged is not None
    assert recovered.merged <= recovered.goodput
    assert identities(beside.pods()) == others
