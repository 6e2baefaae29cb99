"""``diloco cluster revoke`` and ``diloco scale`` against a real API server, which has changed meanwhile."""

from typing import Any

import pytest

from diloco.spec.names.object_names import BadNameError
from diloco_operator.api_server.kinds import JOB
from diloco_operator.commands.revoke import revoke
from diloco_operator.commands.scale import scale
from diloco_operator.commands.shared import CommandError
from testbed.api_server.server import ApiServer
from tests.support.job_in_namespace import MANIFEST, Namespace

FIRST, WEST = (MANIFEST["spec"]["regions"][index]["name"] for index in (0, -1))

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    Namespace(job_server, "ml").job("job")
    return job_server


def pools(server: ApiServer) -> dict[str, Any]:
    """The time of every pool, by region/pool."""
    job = server.request("GET", JOB.path("ml", "job"))[1]
    return {
        f"{region['name']}/{pool['name']}": pool.get("certificatesNotBefore")
        for region in job["spec"]["regions"]
        for pool in region["pools"]
    }


def test_the_pools_of_a_region_get_the_servers_time_and_a_pool_its_own(server: ApiServer) -> None:
    assert set(pools(server).values()) == {None}
    revoke("job", WEST, "ml", None, server.kubeconfig)
    west = {name: time for name, time in pools(server).items() if time is not None}
    assert set(west) == {name for name in pools(server) if name.startswith(f"{WEST}/")}
    first = next(name for name in pools(server) if name.startswith(f"{FIRST}/"))
    revoke("job", first, "ml", None, server.kubeconfig)
    assert pools(server)[first] is not None
    assert pools(server).items() >= west.items()


def test_an_ended_job_has_nothing_to_revoke(server: ApiServer) -> None:
    Namespace(server, "done").job("job")
    server.set_status(JOB.path("done", "job"), {"phase": "Complete"})
    with pytest.raises(CommandError, match=r"JOB: job has ended \(Complete\)"):
        revoke("job", WEST, "done", None, server.kubeconfig)


def test_what_does_not_exist_is_one_line_and_changes_nothing(server: ApiServer) -> None:
    before = pools(server)
    with pytest.raises(CommandError, match=r"REGION\[/POOL\]: europe is not a region or pool of the job; use "):
        revoke("job", "europe", "ml", None, server.kubeconfig)
    with pytest.raises(BadNameError, match=r"JOB: '\.\./job' is not the name of a job"):
        revoke("../job", WEST, "ml", None, server.kubeconfig)
    with pytest.raises(CommandError, match="no job other in namespace ml; there is job"):
        revoke("other", "europe", "ml", None, server.kubeconfig)
    assert pools(server) == before


def test_pools_are_scaled_by_name_after_one_before_them_is_gone(server: ApiServer) -> None:
    Namespace(server, "scaled").job("job")
    job = server.request("GET", JOB.path("scaled", "job"))[1]
    first, last = job["spec"]["regions"][0], job["spec"]["regions"][-1]
    assert first["name"] != last["name"]
    job["spec"]["regions"] = job["spec"]["regions"][1:]
    server.request("PUT", JOB.path("scaled", "job"), job)
    scale("job", [f"{last['name']}/{last['pools'][0]['name']}=7"], "scaled", None, server.kubeconfig)
    changed = server.request("GET", JOB.path("scaled", "job"))[1]["spec"]["regions"][-1]
    assert changed["pools"][0]["learners"] == 7
    with pytest.raises(CommandError, match=rf"REGION/POOL=N: {first['name']}/.* is not a pool of the job; use "):
        scale("job", [f"{first['name']}/{first['pools'][0]['name']}=7"], "scaled", None, server.kubeconfig)
    with pytest.raises(CommandError, match="learners"):
        scale("job", [f"{last['name']}/{last['pools'][0]['name']}=100000"], "scaled", None, server.kubeconfig)
