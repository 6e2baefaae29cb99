"""Jobs and their pods in a namespace of an API server without controllers: made as the operator would make them."""

import json
from pathlib import Path
from typing import Any

import yaml

from diloco.cli.chaos_cluster import ClusterPlace
from diloco.cli.cluster_access import connect
from diloco_operator import labels, names
from diloco_operator.names import PoolKey
from testbed.api_server.server import ApiServer

MANIFEST = yaml.safe_load((Path(__file__).resolve().parents[2] / "examples/two-regions/job.yaml").read_text("utf-8"))
POOLS = [PoolKey(region["name"], pool["name"]) for region in MANIFEST["spec"]["regions"] for pool in region["pools"]]
POOL = POOLS[0]
LEARNER = f"{POOL}/0"
NODE = "node-a"
_POD = {"containers": [{"name": "main", "image": "example/none"}], "automountServiceAccountToken": False}


class Namespace:
    """A namespace with jobs."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self.server = server
        self.name = name
        server.kubectl("create", "namespace", name)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        server.kubectl("apply", "--filename=-", text=yaml.safe_dump(account))

    def job(self, name: str, **spec: Any) -> dict[str, Any]:
        """Make a job, with these fields of its spec changed; returns the owner reference to it."""
        metadata = {"name": name, "namespace": self.name}
        manifest = {**MANIFEST, "metadata": metadata, "spec": {**MANIFEST["spec"], **spec}}
        self.server.kubectl("apply", "--filename=-", text=yaml.safe_dump(manifest))
        return self.owner("dlj", name, "diloco.dev/v1alpha1", "DiLoCoJob")

    def delete_job(self, name: str) -> None:
        self.server.kubectl("delete", "dlj", name, f"--namespace={self.name}")

    def owner(self, resource: str, name: str, version: str, kind: str) -> dict[str, Any]:
        said = self.server.kubectl("get", resource, name, f"--namespace={self.name}", "--output=json").stdout
        uid = json.loads(said)["metadata"]["uid"]
        return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}

    def make(self, version: str, kind: str, name: str, owner: dict[str, Any] | None, **rest: Any) -> None:
        said = rest.pop("labels", {})
        metadata = {"name": name, "namespace": self.name, "labels": said, "ownerReferences": [owner] if owner else []}
        made = {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
        self.server.kubectl("create", "--filename=-", text=yaml.safe_dump(made))

    def stateful_set(self, name: str, owner: dict[str, Any] | None) -> dict[str, Any]:
        template = {"metadata": {"labels": {"set": name}}, "spec": _POD}
        spec = {"serviceName": "none", "selector": {"matchLabels": {"set": name}}, "template": template, "replicas": 0}
        self.make("apps/v1", "StatefulSet", name, owner, spec=spec)
        return self.owner("statefulset", name, "apps/v1", "StatefulSet")

    def replica_set(self, name: str, owner: dict[str, Any]) -> dict[str, Any]:
        """A Deployment ``NAME`` and its ReplicaSet ``NAME-1``; returns the owner reference to the latter."""
        template = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": 0}
        self.make("apps/v1", "Deployment", name, owner, spec=spec)
        self.make(
            "apps/v1", "ReplicaSet", f"{name}-1", self.owner("deployment", name, "apps/v1", "Deployment"), spec=spec
        )
        return self.owner("replicaset", f"{name}-1", "apps/v1", "ReplicaSet")

    def pod(
        self, name: str, said: dict[str, str], owner: dict[str, Any] | None, *, node: str = NODE, **spec: Any
    ) -> None:
        """A pod on a node; ``node=""``: on none."""
        self.make("v1", "Pod", name, owner, spec={**_POD, **({"nodeName": node} if node else {}), **spec}, labels=said)

    def pods(self) -> set[str]:
        found = self.server.kubectl("get", "pods", f"--namespace={self.name}", "--output=name").stdout
        return {line.removeprefix("pod/") for line in found.split()}

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
