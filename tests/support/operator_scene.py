"""A namespace of an API server with jobs, as a user sees it, for tests of a running operator."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.connection import connect
from diloco_operator.api_server.kinds import CHILDREN, CLAIM, CORE_EVENT, JOB, POD, Kind
from diloco_operator.api_server.limits import Limits
from diloco_operator.api_server.requests import RequestHooks
from testbed.api_server.server import ApiServer
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess

_KINDS = {name: kind for kind in (JOB, POD, CORE_EVENT, *CHILDREN) for name in (kind.name.lower(), kind.plural)}
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
"""A rule of a Role."""
_RBAC = "rbac.authorization.k8s.io"
POOLS = {"us-east": {"fast": 2}, "eu": {"slow": 1}}
CHILDREN_OF_TWO_POOLS = 13

REVISION = "controller-revision-hash"

Start = Callable[..., OperatorProcess]
"""Starts an operator that looks after one namespace: with another kubeconfig, and with further flags."""


@asynccontextmanager
async def api_at(
    kubeconfig: Path, hooks: RequestHooks | None = None, limits: Limits | None = None
) -> AsyncIterator[Api]:
    """The API server as the operator's code sees it."""
    connection = await connect(kubeconfig, None)
    async with connection.open() as client:
        yield Api(client, labels.FIELD_MANAGER, hooks, limits)


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


def revision_of(template: dict[str, Any]) -> str:
    """What tells a set's template from others."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]


class Cluster:
    """A namespace of the server, as a user sees it."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return self.server.kubectl(f"--namespace={self.namespace}", *arguments, text=text, check=check).stdout

    def apply(self, body: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", text=json.dumps(body))

    def get(self, kind: str, name: str | None = None) -> Any:
        """An object, or a list of all of a kind; empty if there is none."""
        status, found = self.server.request("GET", _KINDS[kind].path(self.namespace, name))
        return found if status == HTTPStatus.OK else {}

    def items(self, kind: Kind, selector: str = "") -> list[dict[str, Any]]:
        """All of a kind, once the API server serves it: a new one does not serve jobs at once."""
        path = f"{kind.path(self.namespace)}?labelSelector={quote(selector)}"

        def answers() -> list[dict[str, Any]]:
            status, found = self.server.request("GET", path)
            return [found] if status == HTTPStatus.OK else []

        found: list[dict[str, Any]] = wait_until(answers, f"{kind.plural} are served")[0]["items"]
        return found

    def grant(self, user: str, *rules: dict[str, Any]) -> Path:
        """Give a user these rules here, and no others; the user's kubeconfig."""
        typed = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": user}}
        self.apply({**typed, "kind": "Role", "rules": rules})
        bound = {"roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": user}}
        self.apply(
            {**typed, "kind": "RoleBinding", **bound, "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}]}
        )
        self.server.until_rules_hold()
        return self.server.kubeconfig_for(user)

    def make_pod(self, owner: str, index: int, **spec: Any) -> dict[str, Any]:
        """A pod of a StatefulSet as its controller makes it, but with these fields, and with a revision of ours."""
        found = self.get("statefulset", owner)
        template, uid = found["spec"]["template"], found["metadata"]["uid"]
        reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": uid, "controller": True}
        own = {**template["metadata"]["labels"], REVISION: revision_of(template)}
        marks = {"labels": own, "ownerReferences": [reference]}
        body = {"metadata": {"name": f"{owner}-{index}", **marks}, "spec": template["spec"] | spec}
        made: dict[str, Any] = self.server.put(POD.path(self.namespace), body)
        return made

    def set_status(self, kind: Kind, name: str, **status: Any) -> None:
        """As a controller does."""
        self.server.set_status(kind.path(self.namespace, name), status)

    def children(self) -> dict[str, dict[str, Any]]:
        return {
            f"{kind.name}/{item['metadata']['name']}": item
            for kind in CHILDREN
            for item in self.items(kind, "diloco.dev/job")
        }

    def versions(self) -> dict[str, str]:
        """The versions of all children and jobs."""
        items = {**self.children(), **{item["metadata"]["name"]: item for item in self.items(JOB)}}
        return {name: item["metadata"]["resourceVersion"] for name, item in items.items()}

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get("dilocojob", job).get("status", {})
        return status

    def condition(self, job: str, kind: str) -> dict[str, Any]:
        return next((one for one in self.status(job).get("conditions", []) if one["type"] == kind), {})

    def collect_garbage(self, job: str) -> None:
        """Do the garbage collector's work: delete a job's children, and remove the claims' finalizers."""
        selector = f"diloco.dev/job={job}"
        kinds = ",".join(kind.plural for kind in CHILDREN)
        self.kubectl("delete", kinds, f"--selector={selector}", "--wait=false")
        for claim in self.items(CLAIM, selector):
            name = claim["metadata"]["name"]
            self.kubectl("patch", "pvc", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}')

    def settled(self, job: str, children: int = CHILDREN_OF_TWO_POOLS) -> None:
        wait_until(
            lambda: len(self.children()) == children and self.status(job).get("phase") == "Pending",
            f"{job} has its children and a status",
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
    wait_until(lambda: operator.reconciles >= before + times, "it reconciles again")
