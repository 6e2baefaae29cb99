"""A real Prometheus scrapes a real operator, syncer and learners: alerts fire on faults, and dashboards have data."""

import contextlib
import json
import re
import resource
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from diloco.local.launch import free_ports
from diloco.runtime.http import HttpServer, Response
from diloco.spec.status.engine import LearnerState, LearnerStatus
from diloco_operator.api_server.kinds import DEPLOYMENT
from diloco_operator.cluster_state import CLUSTER_LABEL
from testbed import prometheus
from testbed.kind.cache import Cache
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from testbed.operator_with_page import PAGE, PROGRAM_WITH_PAGE
from testbed.prometheus import RunningPrometheus
from tests.support.kubeconfigs import inline, text
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.monitoring import DASHBOARDS, RULES, queries
from tests.support.operator_scene import Cluster, manifest
from tests.support.remote_scene import Far
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
REGIONS = ("here", "away")
ENDLESS = 10**9
OF_QUORUM = {"DiLoCoQuorumMissing", "DiLoCoNoProgress"}
RESTARTS = 6
"""Within an hour, at which the alert fires."""


@pytest.fixture(scope="module")
def programs() -> prometheus.Prometheus:
    found = prometheus.if_there(Cache.of_user())
    if found is None:
        pytest.skip(prometheus.WHY_NONE)
    return found


def impatient(rules: str) -> str:
    """The rules with seconds in place of minutes."""
    hurried = re.sub(r"for: \w+", "for: 1s", rules).replace("[15m]", "[10s]").replace("+ 600", "+ 2")
    assert hurried.count("[10s]") == 4
    return hurried


class Run:
    """A job of two learners, one in each region, as an operator sees it that does not run its pods."""

    def __init__(self, folder: Path, syncer: SyncerProcess) -> None:
        self.folder, self.syncer = folder, syncer
        self.ports = dict(zip(REGIONS, free_ports(2), strict=True))

    def learner(self, region: str) -> LearnerProcess:
        folder = self.folder / region
        folder.mkdir(exist_ok=True)
        flags = ("--http", f"127.0.0.1:{self.ports[region]}")
        return LearnerProcess(
            folder, self.syncer.address, *flags, learner=f"{region}/cpu/0", job=self.folder / "job.json"
        )

    def status(self, region: str) -> LearnerStatus:
        return next(one for one in self.syncer.status().learners if one.id == f"{region}/cpu/0")

    def trains(self, region: str, restarts: int = 0) -> None:
        wait_until(
            lambda: (self.status(region).state, self.status(region).restarts) == (LearnerState.TRAINING, restarts),
            f"{region} trains after {restarts} restarts",
        )

    def page(self) -> Response:
        """What the operator asks of the syncer."""
        with urllib.request.urlopen(f"http://{self.syncer.http_address}/status", timeout=30) as page:
            return Response(page.read(), "application/json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    # Slow steps leave the machine to other tests.
    monkeypatch.setenv("DILOCO_SPEED", "0.1")
    training = {"tokens": ENDLESS, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 6}}
    make_job(
        tmp_path,
        training=training | {"evaluation": {"sequences": 6, "everyTokens": 2000}},
        sync={"fragments": 6, "interval": 6, "quorum": 2, "leaseSeconds": 3},
        syncer={"checkpointEverySeconds": 1, "backup": {"url": str(tmp_path / "kept"), "everySeconds": 1}},
        regions=[{"name": name, "pools": [{"name": "cpu"}]} for name in REGIONS],
    )
    job = cast("SmallJob", SimpleNamespace(path=tmp_path / "job.json"))
    with SyncerProcess(job, tmp_path / "syncer") as syncer:
        yield Run(tmp_path, syncer.serving())


@pytest.fixture
def operator(cluster: Cluster, far: Far, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatorProcess]:
    """It looks after the job, whose second region is in the other cluster."""
    flags = (f"--operator-namespace={cluster.namespace}", f"--namespaces={cluster.namespace}", "--poll-seconds=0.5")
    # A certificate is never renewed, so that its end is told from the beginning.
    pair = far.server._authority.leaf("ops", user="ops", groups=["system:masters"])
    user = {"client-certificate-data": inline(pair.certificate), "client-key-data": inline(pair.key)}
    secret = {"metadata": {"name": "far", "labels": {CLUSTER_LABEL: ""}}, "kind": "Secret", "apiVersion": "v1"}
    cluster.apply(secret | {"stringData": {"kubeconfig": text(far.kubeconfig(**user)).decode()}})
    syncer = {"checkpointEverySeconds": 1, "backup": {"url": "s3://bucket/small", "everySeconds": 1}}
    expose = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    body = manifest("small", {name: {"cpu": 1} for name in REGIONS}, sync={"quorum": 2}, syncer=syncer | expose)
    body["spec"]["regions"][1]["cluster"] = {"kubeconfigSecretRef": {"name": "far"}}
    with HttpServer("127.0.0.1:0", {"/small/status": run.page}) as server:
        monkeypatch.setenv(PAGE, f"http://{server.address}")
        log = run.folder / "operator.log"
        with OperatorProcess(cluster.server.kubeconfig, log, *flags, program=PROGRAM_WITH_PAGE) as started:
            cluster.apply(body)
            wait_until(lambda: cluster.get("deployment", "small-syncer"), "it has a syncer")
            cluster.set_status(DEPLOYMENT, "small-syncer", replicas=1, readyReplicas=1)
            yield started


def configuration(folder: Path, namespace: str, run: Run, operator: OperatorProcess) -> dict[str, Any]:
    """As the chart's monitors have Prometheus scrape."""
    rules = folder / "rules.yaml"
    rules.write_text(impatient(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    job = {"namespace": namespace, "job_name": "small"}
    pods = {"syncer": run.syncer.http_address} | {name: f"127.0.0.1:{port}" for name, port in run.ports.items()}
    of_job = [{"targets": [address], "labels": job | {"pod": pod}} for pod, address in pods.items()]
    of_operator = [{"targets": [operator.address], "labels": {"namespace": "diloco-system", "pod": "operator"}}]
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "operator", "honor_labels": True, "static_configs": of_operator},
            {"job_name": "jobs", "static_configs": of_job},
        ],
    }


def without_data(server: RunningPrometheus, variables: dict[str, str]) -> set[str]:
    asked = {f"{board.stem}: {place}": one for board in DASHBOARDS for place, one in queries(board, variables).items()}
    return {place for place, query in asked.items() if not server.query(query)}


def test_alerts_fire_on_real_faults_and_all_dashboards_have_data(
    programs: prometheus.Prometheus, cluster: Cluster, run: Run, operator: OperatorProcess
) -> None:
    variables = {"__rate_interval": "15s", "namespace": cluster.namespace, "job_name": "small"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.learner("here"))
        with run.learner("away"):
            for region in REGIONS:
                run.trains(region)
            config = configuration(run.folder, cluster.namespace, run, operator)
            server = stack.enter_context(RunningPrometheus(programs, run.folder, config))
            wait_until(lambda: not without_data(server, variables), "each query of the dashboards has data")
            of_run = {*OF_QUORUM, "DiLoCoLearnersRestartOften", "DiLoCoCheckpointOld"}
            wait_until(lambda: not of_run & server.firing().keys(), "no alert fires")
        for restarts in range(1, RESTARTS + 1):
            with run.learner("away"):
                run.trains("away", restarts)
        wait_until(lambda: "DiLoCoLearnersRestartOften" in server.firing(), "restarts are told")
        wait_until(lambda: server.firing().keys() >= OF_QUORUM, "nothing is merged without a quorum")
        with run.learner("away"):
            wait_until(lambda: not OF_QUORUM & server.firing().keys(), "there is a quorum again")
            # Every file over 100 kB fails from here on, as on a disk that is full.
            resource.prlimit(run.syncer.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            wait_until(lambda: "DiLoCoCheckpointOld" in server.firing(), "an old checkpoint is told")
            told = server.firing()
    assert "<error" not in json.dumps(told)
    assert "{{" not in json.dumps(told)
    cluster.kubectl("delete", "dilocojob", "small", "--wait=false")
    wait_until(lambda: 'job_name="small"' not in operator.get("/metrics")[1], "a deleted job has no series")
