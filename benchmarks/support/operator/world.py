"""What the benchmark `operator_scale` needs of a cluster, without one.

Jobs are applied, and their sets get a healthy status. It measures nothing.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from diloco_operator.api_server.kinds import CHILDREN, CLAIM, DEPLOYMENT, JOB, POD, STATEFUL_SET, Kind
from support.job import manifest
from testbed.api_server.server import ApiServer
from testbed.virtual_cluster.world_pods import crashed

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
        return self.regions * self.pools * self.learners

    @property
    def learner_ids(self) -> list[str]:
        """As the syncer names them."""
        numbers = product(range(self.regions), range(self.pools), range(self.learners))
        return [f"region-{region}/pool-{pool}/{index}" for region, pool, index in numbers]

    def manifest(self, name: str) -> dict[str, Any]:
        pools = [{"name": f"pool-{pool}", "learners": self.learners} for pool in range(self.pools)]
        body = manifest(name, {}, training={"tokens": BUDGET_TOKENS}, sync={}, image="registry.example/trainer:1")
        body["spec"]["regions"] = [{"name": f"region-{region}", "pools": pools} for region in range(self.regions)]
        return body


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
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.ask("POST", "/api/v1/namespaces", body)

    def create(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Create jobs, several at once."""
        self._all("POST", [(JOB.path(self.namespace), job) for job in jobs])

    def children(self) -> int:
        """Number of objects of all jobs, counted by the server."""
        return sum(self._count(kind) for kind in CHILDREN)

    def planned(self) -> int:
        """Number of jobs with a status, which is written after their children."""
        return sum("status" in job for job in self.ask("GET", JOB.path(self.namespace))["items"])

    def say_all_is_well(self) -> None:
        """Write statuses: every set has its pods, all ready, and every claim has its volume."""
        writes = []
        for kind in (STATEFUL_SET, DEPLOYMENT, CLAIM):
            for item in self.ask("GET", kind.path(self.namespace))["items"]:
                path = kind.path(self.namespace, item["metadata"]["name"], "status")
                typed = {"apiVersion": kind.api_version, "kind": kind.name}
                writes.append((path, {**typed, **item, "status": _well(kind, item)}))
        self._all("PUT", writes)

    def make_failing_pods(self) -> int:
        """Make a crashing pod for each learner; returns how many. The sets are not ready, so pods are listed."""
        pods: list[tuple[str, dict[str, Any]]] = []
        for item in self.ask("GET", STATEFUL_SET.path(self.namespace))["items"]:
            pods += [(POD.path(self.namespace), _pod(item, index)) for index in range(item["spec"]["replicas"])]
        self._all("POST", pods)
        crashes = [
            (POD.path(self.namespace, pod["metadata"]["name"], "status"), {**pod, "status": _crashing(pod)})
            for _, pod in pods
        ]
        self._all("PUT", crashes)
        return len(pods)

    def message_of(self, job: str, condition: str) -> str:
        status = self.ask("GET", JOB.path(self.namespace, job)).get("status") or {}
        return next((str(one["message"]) for one in status.get("conditions", ()) if one["type"] == condition), "")

    def _count(self, kind: Kind) -> int:
        page = self.ask("GET", f"{kind.path(self.namespace)}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def _all(self, method: str, requests: list[tuple[str, dict[str, Any]]]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda request: self.ask(method, *request), requests))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request as the admin; the benchmark ends if it is refused."""
        status, answer = self.server.request(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {answer}")
        return answer


def _well(kind: Kind, item: dict[str, Any]) -> dict[str, Any]:
    if kind is CLAIM:
        return {"phase": "Bound"}
    wanted = item["spec"]["replicas"]
    status = {"observedGeneration": item["metadata"]["generation"], "replicas": wanted, "readyReplicas": wanted}
    return status | {"updatedReplicas": wanted, "availableReplicas": wanted}


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
