"""What the operator's benchmark needs of a cluster, without one.

Jobs are applied, their sets get a healthy status, and one page answers for every syncer. It measures nothing.
"""

import http.server
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from diloco_operator.cluster.kinds import CHILDREN, CLAIM, DEPLOYMENT, JOB, POD, STATEFUL_SET, Kind
from operator_with_page import PAGE
from testbed.api_server.server import ApiServer
from testbed.virtual_cluster.world_pods import crashed
from testbed.virtual_cluster.world_syncer import WorldSyncer

PATIENCE_SECONDS = 600.0
_AT_ONCE = 4
BUDGET_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Shape:
    """How a job's learners are spread."""

    regions: int
    pools: int
    """Of each region."""
    learners: int
    """Of each pool."""

    @property
    def all_learners(self) -> int:
        """Of the job."""
        return self.regions * self.pools * self.learners

    @property
    def learner_ids(self) -> list[str]:
        """As the syncer names them."""
        return [
            f"region-{region}/pool-{pool}/{index}"
            for region in range(self.regions)
            for pool in range(self.pools)
            for index in range(self.learners)
        ]

    def manifest(self, name: str) -> dict[str, Any]:
        """A job of this shape."""
        pools = [{"name": f"pool-{pool}", "learners": self.learners} for pool in range(self.pools)]
        spec = {
            "image": "registry.example/trainer:1",
            "model": {"builtin": {"preset": "nano"}},
            "data": {"text": {}},
            "training": {"tokens": BUDGET_TOKENS},
            "regions": [{"name": f"region-{region}", "pools": pools} for region in range(self.regions)],
        }
        return {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": {"name": name}, "spec": spec}


def wait(what: str, holds: Callable[[], object], poll_seconds: float = 0.5) -> None:
    """Wait until a condition is true; the benchmark ends if it never is. Each check costs a request."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain: {what}")
        time.sleep(poll_seconds)


@dataclass(frozen=True, slots=True)
class World:
    """A namespace of an API server."""

    server: ApiServer
    namespace: str

    def make_namespace(self) -> None:
        """Make the namespace; call it before anything else."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self._ask("POST", "/api/v1/namespaces", body)

    def apply(self, names: list[str], shape: Shape) -> None:
        """Apply new jobs, several at once."""
        self._all("POST", [(JOB.path(self.namespace), shape.manifest(name)) for name in names])

    def children(self) -> int:
        """Number of objects of all jobs, counted by the server."""
        return sum(self._count(kind) for kind in CHILDREN)

    def planned(self) -> int:
        """Number of jobs with a status, which is written after their children."""
        return sum("status" in job for job in self._ask("GET", JOB.path(self.namespace))["items"])

    def say_all_is_well(self) -> None:
        """Write statuses: every set has its pods, all ready, and every claim has its volume."""
        writes = []
        for kind in (STATEFUL_SET, DEPLOYMENT, CLAIM):
            for item in self._ask("GET", kind.path(self.namespace))["items"]:
                path = kind.path(self.namespace, item["metadata"]["name"], "status")
                typed = {"apiVersion": kind.api_version, "kind": kind.name}
                writes.append((path, {**typed, **item, "status": _well(kind, item)}))
        self._all("PUT", writes)

    def make_failing_pods(self) -> int:
        """Make a crashing pod for each learner; returns how many. The sets are not ready, so pods are listed."""
        pods: list[tuple[str, dict[str, Any]]] = []
        for item in self._ask("GET", STATEFUL_SET.path(self.namespace))["items"]:
            pods += [(POD.path(self.namespace), _pod(item, index)) for index in range(item["spec"]["replicas"])]
        self._all("POST", pods)
        crashes = [
            (POD.path(self.namespace, pod["metadata"]["name"], "status"), {**pod, "status": _crashing(pod)})
            for _, pod in pods
        ]
        self._all("PUT", crashes)
        return len(pods)

    def message_of(self, job: str, condition: str) -> str:
        """The message of a job's condition."""
        status = self._ask("GET", JOB.path(self.namespace, job)).get("status") or {}
        return next((str(one["message"]) for one in status.get("conditions", ()) if one["type"] == condition), "")

    def _count(self, kind: Kind) -> int:
        page = self._ask("GET", f"{kind.path(self.namespace)}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def _all(self, method: str, requests: list[tuple[str, dict[str, Any]]]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda request: self._ask(method, *request), requests))

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.server.request(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {answer}")
        return answer


def _well(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
    if kind is CLAIM:
        return {"phase": "Bound"}
    wanted = item["spec"]["replicas"]
    status = {"observedGeneration": item["metadata"]["generation"], "replicas": wanted, "readyReplicas": wanted}
    return status | ({"updatedReplicas": wanted, "availableReplicas": wanted} if kind is DEPLOYMENT else {})


def _pod(item: dict[str, Any], index: int) -> dict[str, Any]:
    """A pod as the controller of StatefulSets makes it."""
    template, owner = item["spec"]["template"], item["metadata"]
    reference = {"apiVersion": STATEFUL_SET.api_version, "kind": STATEFUL_SET.name, "name": owner["name"]}
    metadata = {
        **template["metadata"],
        "name": f"{owner['name']}-{index}",
        "ownerReferences": [{**reference, "uid": owner["uid"], "controller": True, "blockOwnerDeletion": True}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _crashing(pod: dict[str, Any]) -> dict[str, Any]:
    """The status of a pod whose container waits for its restart, with the fields that the API server requires."""
    status = crashed(1, "torch is not there. " * 20)
    (state,) = status["containerStatuses"]
    containers = [
        {**state, "name": container["name"], "image": container["image"], "imageID": ""}
        for container in pod["spec"]["containers"]
    ]
    return {"phase": status["phase"], "containerStatuses": containers}


@contextmanager
def syncers(shape: Shape) -> Iterator[None]:
    """A page at which every job's syncer reports that its learners train, with constant figures."""
    syncer = WorldSyncer("", BUDGET_TOKENS)
    syncer.started()
    syncer.trains(1.0, shape.learner_ids)
    account = syncer.status()

    class Page(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({**account, "job": self.path.split("/")[1]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, as the output is the report."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        page.daemon_threads = True
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        os.environ[PAGE] = f"http://127.0.0.1:{page.server_address[1]}"
        try:
            yield
        finally:
            page.shutdown()
            thread.join()
