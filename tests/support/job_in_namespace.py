"""Jobs and their pods in a namespace of an API server without controllers: made as the operator would make them."""

from pathlib import Path
from typing import Any

import yaml

from diloco.cli.chaos.cluster import ClusterPlace
from diloco.cli.live.cluster_access import connect
from diloco_operator import labels, names
from diloco_operator.api_server.kinds import DEPLOYMENT, JOB, NAMESPACE, POD, SERVICE_ACCOUNT, STATEFUL_SET, Kind
from diloco_operator.names import PoolKey
from testbed.api_server.server import ApiServer

MANIFEST = yaml.safe_load((Path(__file__).resolve().parents[2] / "examples/two-regions/job.yaml").read_text("utf-8"))
POOLS = [PoolKey(region["name"], pool["name"]) for region in MANIFEST["spec"]["regions"] for pool in region["pools"]]
POOL = POOLS[0]
LEARNER = f"{POOL}/0"
NODE = "node-a"
REPLICA_SET = Kind("ReplicaSet", "replicasets", "apps", "v1")
_POD = {"containers": [{"name": "main", "image": "example/none"}], "automountServiceAccountToken": False}


class Namespace:
    """A namespace with jobs."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.server = server
        self.name = name
        server.put(NAMESPACE.path(None), {"metadata": {"name": name}})
        self.make(SERVICE_ACCOUNT, "default", None)

    def job(self, name: str, **spec: Any) -> dict[str, Any]:
        """Make a job, with these fields of its spec changed; returns the owner reference to it."""
        return self.make(JOB, name, None, spec={**MANIFEST["spec"], **spec})

    def delete_job(self, name: str) -> None:
        self.server.kubectl("delete", "dlj", name, f"--namespace={self.name}")

    def make(self, kind: Kind, name: str, owner: dict[str, Any] | None, **rest: Any) -> dict[str, Any]:
        """Make an object; returns the owner reference to it."""
        metadata = {"name": name, "labels": rest.pop("labels", {}), "ownerReferences": [owner] if owner else []}
        typed = {"apiVersion": kind.api_version, "kind": kind.name}
        made = self.server.put(kind.path(self.name), {**typed, "metadata": metadata, **rest})
        return {**typed, "name": name, "uid": made["metadata"]["uid"], "controller": True}

    def stateful_set(self, name: str, owner: dict[str, Any] | None) -> dict[str, Any]:
        template = {"metadata": {"labels": {"set": name}}, "spec": _POD}
        spec = {"serviceName": "none", "selector": {"matchLabels": {"set": name}}, "template": template, "replicas": 0}
        return self.make(STATEFUL_SET, name, owner, spec=spec)

    def replica_set(self, name: str, owner: dict[str, Any]) -> dict[str, Any]:
        """A Deployment ``NAME`` and its ReplicaSet ``NAME-1``; returns the owner reference to the latter."""
        template = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}
        return self.make(REPLICA_SET, f"{name}-1", self.make(DEPLOYMENT, name, owner, spec=spec), spec=spec)

    def pod(
        self, name: str, said: dict[str, str], owner: dict[str, Any] | None, *, node: str = NODE, **spec: Any
    ) -> None:
        """A pod on a node; ``node=""``: on none."""
        self.make(POD, name, owner, spec={**_POD, **({"nodeName": node} if node else {}), **spec}, labels=said)

    def pods(self) -> set[str]:
        found = self.server.request("GET", POD.path(self.name))[1]["items"]
        return {pod["metadata"]["name"] for pod in found}

    def place(self, job: str, kubeconfig: Path | None = None) -> ClusterPlace:
        return ClusterPlace(connect(kubeconfig or self.server.kubeconfig, None, {}), self.name, job)

    def flags(self, kubeconfig: Path | None = None) -> tuple[str, ...]:
        """What leads ``diloco chaos`` here, unasked."""
        return ("--namespace", self.name, "--kubeconfig", str(kubeconfig or self.server.kubeconfig), "--yes")


def with_jobs(server: ApiServer, name: str) -> tuple[Namespace, str]:
    """Two jobs with a learner each, and pods that only bear the first one's labels; returns its learner's pod."""
    made = Namespace(server, name)
    set_name = names.stateful_set("mine", POOL)
    mine = made.stateful_set(set_name, made.job("mine"))
    theirs = made.stateful_set("theirs", made.job("theirs"))
    made.pod(f"{set_name}-0", labels.of_pool("mine", POOL), mine)
    made.pod("theirs-0", labels.of_pool("theirs", POOL), theirs)
    # Labels of mine, on pods of another job's set, of nobody's set, of none, and of one that was replaced since.
    made.pod("theirs-1", labels.of_pool("mine", POOL), theirs)
    made.pod("nobodys-0", labels.of_pool("mine", POOL), made.stateful_set("nobodys", None))
    made.pod("bare-0", labels.of_pool("mine", POOL), None)
    made.pod("stale-0", labels.of_pool("mine", POOL), mine | {"uid": "00000000-0000-0000-0000-000000000000"})
    return made, f"{set_name}-0"
