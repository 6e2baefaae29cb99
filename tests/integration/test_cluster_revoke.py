"""``diloco cluster revoke`` against a real API server: the annotation that the operator carries out."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from diloco.cli.cluster_access import ClusterError, connect
from diloco.cli.cluster_options import ClusterInputError
from diloco.cli.cluster_revoke import RevokeError, revoke
from diloco_operator.decide.revocation import REVOKED, revoked
from diloco_operator.names import PoolKey
from testbed.api_server.server import ApiServer, why_there_is_none

MANIFEST = yaml.safe_load((Path(__file__).resolve().parents[2] / "examples/two-regions/job.yaml").read_text("utf-8"))
POOLS = [PoolKey(region["name"], pool["name"]) for region in MANIFEST["spec"]["regions"] for pool in region["pools"]]
WEST = [pool for pool in POOLS if pool.region == POOLS[-1].region]

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_there_is_none() is not None, reason=why_there_is_none() or ""),
]


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    job_server.kubectl("create", "namespace", "ml")
    manifest = {**MANIFEST, "metadata": {"name": "job", "namespace": "ml", "annotations": {"example.com/a": "b"}}}
    job_server.kubectl("apply", "--filename=-", text=yaml.safe_dump(manifest))
    return job_server


def annotations(server: ApiServer) -> dict[str, str]:
    found: dict[str, str] = json.loads(server.kubectl("get", "dlj", "job", "--namespace=ml", "--output=json").stdout)[
        "metadata"
    ]["annotations"]
    return found


def test_the_annotation_says_what_the_operator_reads_and_others_stay(server: ApiServer) -> None:
    revoke("job", str(POOLS[0]), "ml", None, server.kubeconfig)
    revoke("job", WEST[0].region, "ml", None, server.kubeconfig)
    found = annotations(server)
    assert found["example.com/a"] == "b"
    said = revoked(found[REVOKED], POOLS, datetime.now(UTC))
    assert said.problem == ""
    assert set(said.before) == {POOLS[0], *WEST}


def test_an_ended_job_has_nothing_to_revoke(server: ApiServer) -> None:
    server.kubectl("create", "namespace", "done")
    manifest = {**MANIFEST, "metadata": {"name": "job", "namespace": "done"}}
    server.kubectl("apply", "--filename=-", text=yaml.safe_dump(manifest))
    patch = f"--patch={json.dumps({'status': {'phase': 'Complete'}})}"
    server.kubectl("patch", "dlj", "job", "--namespace=done", "--subresource=status", "--type=merge", patch)
    with pytest.raises(RevokeError, match=r"JOB: job has ended \(Complete\)"):
        revoke("job", WEST[0].region, "done", None, server.kubeconfig)


def test_the_time_is_that_of_the_server(server: ApiServer) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    date = connect(server.kubeconfig, None, {}).get("/version").date
    assert date is not None
    assert before <= date <= datetime.now(UTC)


def test_what_does_not_exist_is_one_line_and_changes_nothing(server: ApiServer) -> None:
    before = annotations(server)
    with pytest.raises(RevokeError, match=r"REGION\[/POOL\]: europe is not a region or pool of the job; use "):
        revoke("job", "europe", "ml", None, server.kubeconfig)
    with pytest.raises(ClusterInputError, match=r"JOB: '\.\./job' is not the name of a job"):
        revoke("../job", WEST[0].region, "ml", None, server.kubeconfig)
    with pytest.raises(ClusterError, match="no job other in namespace ml; there is job"):
        revoke("other", "europe", "ml", None, server.kubeconfig)
    assert annotations(server) == before
