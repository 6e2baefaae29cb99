"""Syncers that serve as much as they can, as whoever creates a job may have them do, beside one that is honest."""

import json
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from diloco.runtime.http import HttpServer, Response, Route
from diloco_operator.api_server.kinds import DEPLOYMENT
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from testbed.operator_with_page import PAGE, PROGRAM_WITH_PAGE
from tests.support.operator_scene import Cluster, manifest

VALUES = Path(__file__).parents[3] / "charts/diloco-operator/values.yaml"
PAGE_BYTES = 8_200_000
LEARNERS = 10_000


def filled(field: str, *items: str) -> bytes:
    """A status whose field is a list of these items and, for the rest of the page, of the last one."""
    head = f'{{"job": "JOB", "epoch": 1, "phase": "Training", "{field}": ['
    left = PAGE_BYTES - len(head) - sum(map(len, items)) - 2 * len(items)
    return (head + ", ".join([*items, *[items[-1]] * (left // (len(items[-1]) + 2))]) + "]}").encode()


def learner(index: int, **fields: str) -> str:
    return json.dumps({"id": f"eu/slow/{index}", "state": "Training", **fields})


HOSTILE = {
    "planned": filled("learners", *(learner(index, diverged_reason="x" * 700) for index in range(LEARNERS))),
    "again": filled("learners", *map(learner, range(LEARNERS))),
    "short": filled("learners", '{"id": "", "state": ""}'),
    "evaluations": filled("evaluations", "{}"),
    "unknown": filled("unknown", "[]"),
}


def highest_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def test_large_pages_take_bounded_memory_and_an_honest_job_is_served(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict.fromkeys((*HOSTILE, "honest"), 0)

    def route(job: str, body: bytes) -> Route:
        def answer() -> Response:
            asked[job] += 1
            return Response(body.replace(b"JOB", job.encode(), 1), "application/json")

        return answer

    honest = b'{"job": "JOB", "epoch": 1, "phase": "Training", "syncer_step": 7}'
    pages = {f"/{job}/status": route(job, body) for job, body in {**HOSTILE, "honest": honest}.items()}
    limit = yaml.safe_load(VALUES.read_text())["resources"]["limits"]["memory"]
    assert limit == "512Mi"
    flags = (f"--operator-namespace={cluster.namespace}", f"--namespaces={cluster.namespace}", "--poll-seconds=0.5")
    with HttpServer("127.0.0.1:0", pages) as server:
        monkeypatch.setenv(PAGE, f"http://{server.address}")
        log = tmp_path / "operator.log"
        with OperatorProcess(cluster.server.kubeconfig, log, *flags, program=PROGRAM_WITH_PAGE) as operator:
            for job in asked:
                cluster.apply(manifest(job, {"eu": {"slow": 2 if job == "honest" else LEARNERS}}))
            for job in asked:
                wait_until(partial(cluster.get, "deployment", f"{job}-syncer"), f"{job} has its syncer")
                cluster.set_status(DEPLOYMENT, f"{job}-syncer", replicas=1, readyReplicas=1)
            wait_until(lambda: min(asked.values()) >= 5, "each is asked several times")
            wait_until(lambda: cluster.status("honest").get("progress", {}).get("step") == 7, "it is served")
            assert highest_bytes(operator.pid) < 512 << 20
            assert psutil.Process(operator.pid).memory_info().rss < 300 << 20
            assert "reconcile failed" not in operator.log
