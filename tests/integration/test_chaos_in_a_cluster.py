"""``diloco chaos`` against a real API server: only the job's own pods are deleted, whatever labels others bear."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.cli.chaos_cluster import ROLE
from diloco.cli.main import execute
from diloco.local.chaos.orders import Order
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco_operator import labels
from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none
from tests.support.job_in_namespace import LEARNER, POOL, Namespace, with_jobs

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_there_is_none() is not None, reason=why_there_is_none() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with job_api_server() as made:
        yield made


def test_only_pods_that_the_job_owns_are_deleted(server: ApiServer) -> None:
    made, pod = with_jobs(server, "owned")
    before = made.pods()
    place = made.place("mine")
    everybody = place.learner_ids
    hit, refused = place.hit(Order(0.0, FaultKind.KILL, "*", (*everybody, "syncer")))
    assert hit == (LEARNER,)
    assert "has no pod" in refused
    assert made.pods() == before - {pod}
    # Nothing is left to hit, and nothing else is hit instead.
    assert place.hit(Order(0.0, FaultKind.EVICT, LEARNER, (LEARNER,))) == ((), f"{LEARNER}: has no pod")
    assert made.pods() == before - {pod}


def test_the_syncer_is_found_through_its_deployment(server: ApiServer) -> None:
    made = Namespace(server, "syncers")
    replica_set = made.replica_set("mine-syncer", made.job("mine"))
    made.pod("mine-syncer-1-a", labels.of_job("mine", labels.SYNCER), replica_set)
    made.pod("another", labels.of_job("mine", labels.SYNCER), None)
    hit, refused = made.place("mine").hit(Order(0.0, FaultKind.KILL, "syncer", ("syncer",)))
    assert (hit, refused) == (("syncer",), "")
    assert made.pods() == {"another"}


def test_nothing_is_done_unasked(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = with_jobs(server, "asked")
    before = made.pods()
    there = ("job/mine", "--namespace", made.name, "--kubeconfig", str(server.kubeconfig), "--for", "2s")
    kill = ("--fault", f"kill:{LEARNER}@at=0")
    assert execute(["chaos", *there, *kill]) == 2  # a test has no terminal
    assert "--yes: is needed where nobody can be asked" in capsys.readouterr().err
    assert execute(["chaos", *there, *kill, "--dry-run"]) == 0
    assert f"kill {LEARNER}" in capsys.readouterr().out
    assert made.pods() == before
    assert execute(["chaos", *there, "--fault", "kill:nowhere@at=0", "--yes"]) == 2
    assert "'nowhere' matches no learner of this job" in capsys.readouterr().err
    assert execute(["chaos", *there, "--pause-learners", "6", "--yes"]) == 2
    assert "--pause-learners: 6 cannot be used in a cluster" in capsys.readouterr().err
    assert execute(["chaos", "job/other", *there[1:], *kill, "--yes"]) == 2
    assert "no job other in namespace asked" in capsys.readouterr().err
    assert made.pods() == before


def test_a_session_deletes_and_reports(server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made, pod = with_jobs(server, "session")
    before = made.pods()
    report = tmp_path / "chaos.json"
    flags = ("--namespace", made.name, "--kubeconfig", str(server.kubeconfig), "--yes", "--json", str(report))
    kill = ("--fault", f"kill:{POOL.region}@at=0", "--for", "1s", "--settle", "0", "--seed", "5")
    assert execute(["chaos", "job/mine", *flags, *kill]) == 0
    assert made.pods() == before - {pod}
    assert f"kill {POOL.region}" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert (found["job"], found["seed"]) == ("mine", 5)
    (fault,) = found["faults"]
    assert (fault["victims"], fault["recovered"], fault["lost"]) == ([LEARNER], 0, 1)


def test_an_ended_job_is_left_alone(server: ApiServer) -> None:
    made, _ = with_jobs(server, "ended")
    patch = f"--patch={json.dumps({'status': {'phase': 'Complete'}})}"
    server.kubectl("patch", "dlj", "mine", f"--namespace={made.name}", "--subresource=status", "--type=merge", patch)
    with pytest.raises(ChaosError, match=r"JOB: mine has ended \(Complete\)"):
        made.place("mine")


def test_it_needs_rights_of_its_own_and_the_role_has_them(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made, pod = with_jobs(server, "rights")
    before = made.pods()
    erin = ("--kubeconfig", str(server.kubeconfig_for("erin")), "--namespace", made.name)
    kill = ("chaos", "job/mine", *erin, "--fault", f"kill:{LEARNER}@at=0", "--for", "1s", "--settle", "0", "--yes")
    assert execute([*kill]) == 2
    told = capsys.readouterr().err
    assert "not permitted" in told
    assert "diloco chaos --print-role" in told
    assert made.pods() == before
    assert execute(["chaos", "--print-role", "--namespace", made.name]) == 0
    server.kubectl("apply", "--filename=-", text=capsys.readouterr().out)
    server.kubectl("create", "rolebinding", ROLE, f"--namespace={made.name}", f"--role={ROLE}", "--user=erin")
    assert execute([*kill]) == 0
    assert made.pods() == before - {pod}
