"""``diloco status`` and ``diloco top`` against a real API server: its jobs, its refusals, its way to a syncer."""

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from diloco.cli.main import execute
from diloco.local.report.html import HEADERS
from diloco_operator import labels
from diloco_operator.api_server.kinds import JOB, POD
from testbed.api_server.certificates import Authority
from testbed.api_server.server import ApiServer
from testbed.fork_server import Popen
from tests.support.fake_kubelet import Kubelet
from tests.support.http_pages import WAIT_SECONDS, page
from tests.support.job_in_namespace import NODE, Namespace
from tests.support.local_run import PROGRAM
from tests.support.seen_jobs import complete_status, syncer_account, training_status
from tests.support.status_page import status_page

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    """A server with jobs: two in reading, and in other one that no operator has seen."""
    reading, other, _ = (Namespace(job_server, name) for name in ("reading", "other", "empty"))
    for name, status in (("two-regions", training_status()), ("done", complete_status())):
        reading.job(name)
        job_server.set_status(JOB.path(reading.name, name), status)
    other.job("fresh")
    return job_server


class Diloco:
    """The program, as a user of the server runs it."""

    def __init__(self, capsys: pytest.CaptureFixture[str], kubeconfig: Path) -> None:
        self._capsys = capsys
        self._flags = ["--kubeconfig", str(kubeconfig)]

    def out(self, *arguments: str) -> str:
        assert execute([*arguments, *self._flags]) == 0
        captured = self._capsys.readouterr()
        assert captured.err == ""
        return captured.out

    def complaint(self, *arguments: str) -> str:
        assert execute([*arguments, *self._flags]) == 2
        captured = self._capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return str(line).removeprefix("diloco: ")


@pytest.fixture(autouse=True)
def _pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print into a pipe, whose lines are as wide as needed."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def diloco(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> Diloco:
    capsys.readouterr()
    return Diloco(capsys, server.kubeconfig)


def test_without_the_crd_the_error_gives_the_command_that_installs_it(
    far_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["-A"], ["job/mine"]):
        complaint = Diloco(capsys, far_server.kubeconfig).complaint("status", *arguments)
        assert complaint.startswith(f"{far_server.url} has no DiLoCoJobs; install the operator with helm install ")


def test_all_jobs_of_a_namespace_are_a_line_each(diloco: Diloco) -> None:
    lines = diloco.out("top", "--namespace", "reading", "--once").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["done", "Complete"], ["two-regions", "Training"]]


def test_all_jobs_of_all_namespaces_come_as_json(diloco: Diloco) -> None:
    (line,) = diloco.out("top", "-A", "--once", "--json").splitlines()
    jobs = json.loads(line)["jobs"]
    here = [job for job in jobs if job["namespace"] in ("reading", "other")]  # others' jobs are on the server too
    assert [(job["namespace"], job["name"], job["status"]["phase"]) for job in here] == [
        ("other", "fresh", "Pending"),
        ("reading", "done", "Complete"),
        ("reading", "two-regions", "Training"),
    ]


def test_a_job_that_is_over_ends_the_watching_and_says_where_the_model_is(diloco: Diloco) -> None:
    lines = diloco.out("top", "job/done", "-n", "reading").splitlines()
    assert lines[0] == "done  Complete: BudgetReached: 2001920 tokens were merged"
    assert len(lines) == 2
    assert "model.safetensors on PersistentVolumeClaim" in diloco.out("status", "job/done", "-n", "reading")


def test_a_job_that_is_not_there_names_those_that_are(diloco: Diloco) -> None:
    assert diloco.complaint("status", "job/mine", "-n", "reading") == (
        "no job mine in namespace reading; there are done, two-regions"
    )
    assert diloco.complaint("status", "job/fresh", "-n", "empty") == (
        "no job fresh in namespace empty; there is one in namespace other"
    )
    assert diloco.complaint("top", "job/nobodys") == "no job nobodys in namespace default; there are no jobs there"


def test_a_user_who_may_not_is_told_what_by_the_server(
    server: ApiServer, capsys: pytest.CaptureFixture[str], diloco: Diloco
) -> None:
    assert diloco.out("status", "-n", "reading")
    nobody = Diloco(capsys, server.kubeconfig_for("nobody"))
    assert nobody.complaint("status", "-n", "reading") == (
        'not permitted: dilocojobs.diloco.dev is forbidden: User "nobody" cannot list resource "dilocojobs" in API '
        'group "diloco.dev" in the namespace "reading"'
    )


def test_a_viewer_who_may_not_ask_the_syncer_sees_the_jobs_status(
    server: ApiServer, capsys: pytest.CaptureFixture[str], diloco: Diloco
) -> None:
    assert diloco.out("status", "-n", "reading")
    server.kubectl("create", "role", "viewer", "-n", "reading", "--verb=get,list", "--resource=dilocojobs.diloco.dev")
    server.bind("viewer", "viewer", "reading")
    view = Diloco(capsys, server.kubeconfig_for("viewer")).out("status", "job/two-regions", "-n", "reading")
    assert "us-west/old      1      1       2  two-regions-old" in view
    assert "step 120  loss 1.630" in view
    assert 'User "viewer" cannot list resource "pods"' in view


def test_credentials_of_another_cluster_are_not_accepted(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], diloco: Diloco
) -> None:
    assert diloco.out("status", "-n", "reading")
    config = yaml.safe_load(server.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": "of-another-cluster"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    complaint = Diloco(capsys, path).complaint("status")
    assert complaint == f"{server.url} rejects the credentials of context test"


@pytest.fixture
def kubelet(server: ApiServer, tmp_path: Path) -> Iterator[Kubelet]:
    """The kubelet of a node on which the syncer of two-regions runs."""
    reading = Namespace(server, "reading")
    with (
        status_page(syncer_account(), report="<main>grows</main>") as port,
        Kubelet(port, Authority(tmp_path)) as running,
    ):
        running.join(server, NODE)
        pod = f"two-regions-syncer-{running.port}"
        reading.pod(pod, labels.of_job("two-regions", labels.SYNCER), None)
        server.set_status(POD.path(reading.name, pod), {"phase": "Running"})
        yield running
        server.kubectl("delete", "pod", pod, "-n", reading.name, "--force")


def test_each_learner_is_shown_where_the_api_server_reaches_the_syncer(diloco: Diloco, kubelet: Kubelet) -> None:
    view = diloco.out("status", "job/two-regions", "-n", "reading")
    assert "us-west/old/0  training    42  2.500    2.00 k    1.0 %     90%         1" in view
    document = json.loads(diloco.out("status", "job/two-regions", "-n", "reading", "--json"))
    assert document["syncer"]["learners"][0]["id"] == "us-west/old/0"
    assert document["syncerUnseen"] is None
    assert set(kubelet.asked) == {8080}


def test_the_report_of_a_job_comes_through_the_api_server(server: ApiServer, kubelet: Kubelet) -> None:
    flags = ("-n", "reading", "--kubeconfig", str(server.kubeconfig))
    with Popen([*PROGRAM, "page", "job/two-regions", *flags], stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            address = served.stdout.readline().split("http://")[1].split("/")[0]
            assert page(address, "/") == (200, "<main>grows</main>")
            with urllib.request.urlopen(f"http://{address}/", timeout=WAIT_SECONDS) as answer:
                assert answer.headers["Content-Security-Policy"] == dict(HEADERS)["Content-Security-Policy"]
            kubelet.refuses = True
            until = time.monotonic() + WAIT_SECONDS
            while page(address, "/")[0] != 503:
                assert time.monotonic() < until
                time.sleep(0.1)
            assert "its syncer cannot be reached through the API server" in page(address, "/")[1]
        finally:
            served.send_signal(signal.SIGINT)
        assert served.wait(WAIT_SECONDS) == 0
    assert set(kubelet.asked) == {8080}


def test_a_page_needs_a_job_that_is_there(diloco: Diloco) -> None:
    assert diloco.complaint("page", "job/other", "-n", "reading").startswith("no job other in namespace reading")
    assert diloco.complaint("page", "-n", "reading") == "page: shows one job; name it, as in job/two-regions"


def test_a_syncer_that_cannot_be_asked_leaves_the_jobs_own_status(diloco: Diloco, kubelet: Kubelet) -> None:
    kubelet.refuses = True
    view = diloco.out("status", "job/two-regions", "-n", "reading")
    assert "us-west/old      1      1       2  two-regions-old" in view
    assert "its syncer cannot be reached through the API server: no answer from two-regions-syncer" in view
    assert "connection refused" in view


def test_without_a_pod_the_syncer_is_not_running(diloco: Diloco) -> None:
    assert "its syncer is not running" in diloco.out("status", "job/two-regions", "-n", "reading")


def test_a_user_who_may_see_pods_and_not_into_them_is_told_so(
    server: ApiServer, capsys: pytest.CaptureFixture[str], diloco: Diloco, kubelet: Kubelet
) -> None:
    assert diloco.out("status", "-n", "reading")
    resources = "--resource=dilocojobs.diloco.dev,pods"
    server.kubectl("create", "role", "onlooker", "-n", "reading", "--verb=get,list", resources)
    server.bind("onlooker", "onlooker", "reading")
    view = Diloco(capsys, server.kubeconfig_for("onlooker")).out("status", "job/two-regions", "-n", "reading")
    assert 'User "onlooker" cannot' in view
    assert 'resource "pods/portforward"' in view
    assert kubelet.asked == []
