"""A ``diloco chaos`` session whose job or rights go meanwhile ends, says why, and reports what it has injected."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diloco.cli.chaos.pods
from diloco.cli.chaos.cluster import ROLE
from diloco.cli.live.cluster_access import UnauthorizedError
from diloco.cli.main import execute
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.runtime.process.exits import EXIT_BAD_INPUT
from diloco_operator import labels
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from tests.support.job_in_namespace import LEARNER, POOL, Namespace, with_jobs

pytestmark = pytest.mark.processes
_WAIT_SECONDS = 120.0


@pytest.fixture
def proxy(job_server: ApiServer, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(job_server.kubeconfig, tmp_path) as running:
        yield running


class Change(threading.Thread):
    """Does something as soon as a pod is gone, while a session goes on in the main thread."""

    def __init__(self, made: Namespace, pod: str, then: Callable[[], object]) -> None:
        super().__init__()
        self._made, self._pod, self._then = made, pod, then

    def run(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while self._pod in self._made.pods() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._then()

    def during(self, *arguments: str) -> int:
        """The exit code of ``diloco chaos`` with these arguments."""
        self.start()
        try:
            return execute(["chaos", *arguments])
        finally:
            self.join()


def reported(file: Path) -> list[dict[str, Any]]:
    faults: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["faults"]
    return faults


def test_a_job_that_is_deleted_ends_the_session_with_its_report(
    job_server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made, pod = with_jobs(job_server, "deleted")
    file = tmp_path / "chaos.json"
    change = Change(made, pod, lambda: made.delete_job("mine"))
    later = ("--fault", f"kill:{LEARNER}@at=0", "--fault", f"kill:{LEARNER}@at=3599", "--for", "1h")
    assert change.during("job/mine", *made.flags(), *later, "--json", str(file)) == EXIT_BAD_INPUT
    told = capsys.readouterr()
    assert told.err == "diloco: the session ended early: JOB: mine was deleted\n"
    assert "0 of 1 seen" in told.out  # in the table
    assert [fault["victims"] for fault in reported(file)] == [[LEARNER]]


def test_a_job_of_the_same_name_is_not_taken_for_the_one_before(job_server: ApiServer) -> None:
    made, pod = with_jobs(job_server, "anew")
    place = made.place("mine")
    place.status()
    made.delete_job("mine")
    made.job("mine")
    with pytest.raises(ChaosError, match="mine was deleted; the job that has its name now is another one"):
        place.status()
    # Also in the second before that is seen: the pods of the other job are not those of this one.
    before = made.pods()
    made.pod("new-0", labels.of_pool("mine", POOL), made.stateful_set("new", made.job("mine")))
    assert place.hit(Fault(FaultKind.KILL, LEARNER, (LEARNER,))) == ((LEARNER,), "")
    assert made.pods() == (before | {"new-0"}) - {pod}


def test_a_job_that_is_being_deleted_ends_the_session(job_server: ApiServer) -> None:
    made, _ = with_jobs(job_server, "leaving")
    place = made.place("mine")
    there = ("dlj", "mine", f"--namespace={made.name}")
    finalizers = {"metadata": {"finalizers": ["diloco.dev/test"]}}
    job_server.kubectl("patch", *there, "--type=merge", f"--patch={json.dumps(finalizers)}")
    job_server.kubectl("delete", *there, "--wait=false")
    with pytest.raises(ChaosError, match="JOB: mine is being deleted"):
        place.status()
    job_server.kubectl("patch", *there, "--type=merge", '--patch={"metadata": {"finalizers": []}}')


def test_rights_that_are_taken_away_end_it_and_nobody_counts_as_hit(
    job_server: ApiServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made, pod = with_jobs(job_server, "revoked")
    assert execute(["chaos", "--print-role", "--namespace", made.name]) == 0
    job_server.kubectl("apply", "--filename=-", text=capsys.readouterr().out)
    job_server.bind(ROLE, "frank", made.name)
    file = tmp_path / "chaos.json"
    there = f"--namespace={made.name}"
    change = Change(made, pod, lambda: job_server.kubectl("delete", "rolebinding", f"{ROLE}-frank", there))
    rates = ("--fault", f"kill:{LEARNER}@at=0", "--fault", f"kill:{LEARNER}@rate=3e3", "--for", "1h")
    assert change.during("job/mine", *made.flags(job_server.kubeconfig_for("frank")), *rates, "--json", str(file)) == 2
    told = capsys.readouterr()
    assert told.err.startswith("diloco: the session ended early: ")
    assert "not permitted" in told.err
    assert len(told.err.splitlines()) == 1
    hit, *others = reported(file)
    assert (hit["victims"], hit["refused"]) == ([LEARNER], "")
    # Orders after that found no pod, and at most the last one no rights.
    assert all(fault["victims"] == [] and fault["refused"] for fault in others)


def test_rights_that_are_missing_for_one_pod_spare_the_others(job_server: ApiServer, proxy: FaultProxy) -> None:
    made = Namespace(job_server, "refused")
    pool = {"name": POOL.pool, "learners": 3}
    owner = made.stateful_set("mine", made.job("mine", regions=[{"name": POOL.region, "pools": [pool]}]))
    for index in range(3):
        made.pod(f"mine-{index}", labels.of_pool("mine", POOL), owner)
    place = made.place("mine", proxy.kubeconfig)
    proxy.fault("DELETE .*/pods/mine-1", code=401, reason="Unauthorized")
    hit, refused = place.hit(Fault(FaultKind.KILL, "*", place.learner_ids))
    # Who was hit before the error is known, and nothing is tried after it.
    assert (hit, made.pods()) == ((f"{POOL}/0",), {"mine-1", "mine-2"})
    assert "rejects the credentials" in refused
    with pytest.raises(UnauthorizedError, match="rejects the credentials"):
        place.over()


def test_a_list_that_expires_while_it_is_read_is_read_again(
    job_server: ApiServer, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diloco.cli.chaos.pods, "_PAGE", 1)
    made, pod = with_jobs(job_server, "expired")
    place = made.place("mine", proxy.kubeconfig)
    kill = Fault(FaultKind.KILL, LEARNER, (LEARNER,))
    following = r"GET .*/pods\?.*continue=."
    always = proxy.fault(following, code=410, reason="Expired", times=-1)
    hit, refused = place.hit(kill)
    assert (hit, refused.partition(": ")[2]) == ((), "the list of pods expired before all of it was read")
    assert always.struck == 3
    assert not place.over()
    proxy.mend()
    proxy.fault(following, code=410, reason="Expired", times=1)
    assert place.hit(kill) == ((LEARNER,), "")
    assert pod not in made.pods()
