"""A namespace of an API server with jobs, as a user sees it, for tests of a running operator."""

import json
from collections.abc import Callable
from typing import Any

from testbed.api_server.server import ApiServer
from testbed.operator_process import OperatorProcess, eventually

CHILDREN = (
    "statefulsets,deployments,services,configmaps,secrets,persistentvolumeclaims,poddisruptionbudgets,networkpolicies"
)
POOLS = {"us-east": {"fast": 2}, "eu": {"slow": 1}}
CHILDREN_OF_TWO_POOLS = 13

Start = Callable[..., OperatorProcess]
"""Starts an operator that looks after one namespace: with another kubeconfig, and with further flags."""


def manifest(name: str, pools: dict[str, dict[str, int]] = POOLS, **spec: Any) -> dict[str, Any]:
    regions = [
        {"name": region, "pools": [{"name": pool, "learners": learners} for pool, learners in of_region.items()]}
        for region, of_region in pools.items()
    ]
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": name},
        "spec": {
            "image": "registry.example/trainer:1",
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {"path": "/data"}},
            "training": {"tokens": 1_000_000, "sequenceLength": 16, "batchSize": 4},
            "regions": regions,
            **spec,
        },
    }


class Cluster:
    """A namespace of the server, as a user sees it."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return self.server.kubectl(f"--namespace={self.namespace}", *arguments, text=text, check=check).stdout

    def apply(self, body: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", text=json.dumps(body))

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "--output=json", check=False) or "{}")

    def children(self) -> dict[str, dict[str, Any]]:
        items = self.get(CHILDREN, "--selector=diloco.dev/job").get("items", [])
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}

    def versions(self) -> dict[str, str]:
        """The versions of all children and jobs."""
        items = {**self.children(), **{item["metadata"]["name"]: item for item in self.get("dilocojobs")["items"]}}
        return {name: item["metadata"]["resourceVersion"] for name, item in items.items()}

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get("dilocojob", job).get("status", {})
        return status

    def condition(self, job: str, kind: str) -> dict[str, Any]:
        return next((one for one in self.status(job).get("conditions", []) if one["type"] == kind), {})

    def collect_garbage(self, job: str) -> None:
        """Do the garbage collector's work: delete a job's children, and remove the claims' finalizers."""
        selector = f"--selector=diloco.dev/job={job}"
        self.kubectl("delete", CHILDREN, selector, "--wait=false")
        for claim in self.get("persistentvolumeclaims", selector)["items"]:
            name = claim["metadata"]["name"]
            self.kubectl("patch", "pvc", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}')

    def settled(self, job: str, children: int = CHILDREN_OF_TWO_POOLS) -> None:
        eventually(
            f"{job} has its children and a status",
            lambda: len(self.children()) == children and self.status(job).get("phase") == "Pending",
        )

    def has_job(self, name: str) -> None:
        """Apply a job of two pools, and wait until it is reconciled."""
        self.apply(manifest(name))
        self.settled(name)


def at_rest(cluster: Cluster, operator: OperatorProcess) -> dict[str, str]:
    """Versions of a job ``two`` and its children, which the operator has created and keeps reconciling."""
    cluster.has_job("two")
    reconciles_again(operator)
    return cluster.versions()


def reconciles_again(operator: OperatorProcess, times: int = 4) -> None:
    before = operator.reconciles
    eventually("it reconciles again", lambda: operator.reconciles >= before + times)
