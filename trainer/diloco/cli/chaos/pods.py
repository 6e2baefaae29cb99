"""The pods of one job in a cluster, and their deletion for ``diloco chaos``: whose a pod is, is checked twice.

A pod belongs to the job if its labels say so and if its chain of controllers, by uid, ends at the job: pod, StatefulSet
(learners) or ReplicaSet and Deployment (syncer), DiLoCoJob. Every user who may create pods can set labels. A
pod is deleted only if it still has the uid that was checked.

Only a pod that runs on a node can lose its learner. One that waits has none yet: deleting it would count as a fault
without a recovery, and restart the scheduler's record of how long it has waited.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from diloco.cli.live.cluster_access import ApiServer, AwayError, ClusterError
from diloco.local.targets import SYNCER

_PAGE: Final = 500
_MOST_PAGES: Final = 1000
_MOST_LISTS: Final = 3
"""Attempts to read all pages of a list (ours): the server may forget a list while it is read."""
_PATHS: Final = {
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets/{}",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
}
_KINDS_OF_JOB: Final = "DiLoCoJob"
_LONGEST_CHAIN: Final = 3


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod that belongs to the job."""

    who: str
    """The learner's id, or ``syncer``."""
    name: str
    uid: str
    node: str
    """Empty: not scheduled."""
    refusal: str = ""
    """Why it cannot be a victim; empty: it can."""


class JobPods:
    """Finds and deletes the pods of one job."""

    def __init__(self, server: ApiServer, namespace: str, job: str, uid: str, nodes: Mapping[str, int]) -> None:
        """``nodes``: of each pool, those of a learner, which has a pod on each."""
        self._server = server
        self._nodes = nodes
        self._namespace = namespace
        self._job = job
        self._uid = uid

    def every(self) -> dict[str, JobPod]:
        """The job's pods, by learner id or ``syncer``; of several of one, the first that can be a victim.

        Raises:
            AwayError: no answer, or the list expired while it was read.
            ClusterError: they cannot be listed.
        """
        for _ in range(_MOST_LISTS):
            try:
                return self._read()
            except _ExpiredError:
                continue
        raise AwayError(f"{self._server.url}: the list of pods expired before all of it was read")

    def _read(self) -> dict[str, JobPod]:
        from diloco_operator import labels

        owners: dict[tuple[str, str], Mapping[str, Any]] = {}
        pods: dict[str, JobPod] = {}
        for item in self._items(labels.text({labels.JOB: self._job, labels.MANAGED_BY: labels.FIELD_MANAGER})):
            metadata = item.get("metadata") or {}
            who = self._who(metadata)
            if not who or not self._is_the_jobs(metadata, owners):
                continue
            node = str((item.get("spec") or {}).get("nodeName") or "")
            pod = JobPod(who, str(metadata["name"]), str(metadata["uid"]), node, _refusal(item))
            # A pod that leaves, or one that was evicted, may still be there beside its successor.
            if who not in pods or pods[who].refusal:
                pods[who] = pod
        return pods

    def delete(self, pod: JobPod, *, grace_seconds: int | None) -> str:
        """Delete a pod; returns why it was not, or nothing.

        ``grace_seconds``: None leaves the pod its own grace period, 0 kills its containers at once.

        Raises:
            ForbiddenError: the user lacks the permission.
            AwayError: no answer.
        """
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        answer = self._server.delete(f"/api/v1/namespaces/{self._namespace}/pods/{pod.name}", options)
        if answer.status < HTTPStatus.MULTIPLE_CHOICES:
            return ""
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            return f"{pod.who}: its pod was replaced meanwhile"
        return f"{pod.who}: {answer.said.get('message', f'HTTP {answer.status}')}"

    def _who(self, metadata: Mapping[str, Any]) -> str:
        """The learner's id or ``syncer``; empty: neither."""
        from diloco_operator import labels

        ours = metadata.get("labels") or {}
        if ours.get(labels.COMPONENT) == labels.SYNCER:
            return SYNCER
        index = str(metadata.get("name", "")).rpartition("-")[2]
        if ours.get(labels.COMPONENT) != labels.LEARNER or not index.isdigit():
            return ""
        pool = f"{ours.get(labels.REGION)}/{ours.get(labels.POOL)}"
        return f"{pool}/{int(index) // self._nodes.get(pool, 1)}"

    def _is_the_jobs(self, metadata: Mapping[str, Any], owners: dict[tuple[str, str], Mapping[str, Any]]) -> bool:
        for _ in range(_LONGEST_CHAIN):
            owner = _controller(metadata)
            if owner is None:
                return False
            kind, name, uid = owner
            if kind == _KINDS_OF_JOB:
                return name == self._job and uid == self._uid
            if kind not in _PATHS:
                return False
            if (kind, name) not in owners:
                answer = self._server.get(_PATHS[kind].format(self._namespace, name))
                owners[kind, name] = answer.said.get("metadata") or {} if answer.status == HTTPStatus.OK else {}
            metadata = owners[kind, name]
            if metadata.get("uid") != uid:
                return False
        return False

    def _items(self, selector: str) -> Iterator[Mapping[str, Any]]:
        following = ""
        for _ in range(_MOST_PAGES):
            query = {"limit": _PAGE, "labelSelector": selector, "continue": following}
            text = urlencode({key: value for key, value in query.items() if value})
            answer = self._server.get(f"/api/v1/namespaces/{self._namespace}/pods?{text}")
            if answer.status == HTTPStatus.GONE and following:
                raise _ExpiredError
            if answer.status != HTTPStatus.OK:
                why = answer.said.get("message", f"HTTP {answer.status}")
                raise ClusterError(f"{self._server.url} does not list pods: {why}")
            yield from (item for item in answer.said.get("items") or () if isinstance(item, Mapping))
            following = str((answer.said.get("metadata") or {}).get("continue") or "")
            if not following:
                return
        raise ClusterError(f"{self._server.url} lists pods without end")


class _ExpiredError(Exception):
    """The rest of a list cannot be read any more."""


def _refusal(item: Mapping[str, Any]) -> str:
    """Why a pod cannot be a victim; empty: it can."""
    spec = item.get("spec") or {}
    if (item.get("metadata") or {}).get("deletionTimestamp"):
        return "its pod is being deleted already"
    if spec.get("schedulingGates"):
        return "its pod is held back by a scheduling gate"
    if not spec.get("nodeName"):
        return "its pod has no node"
    if (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return "its pod has ended"
    return ""


def _controller(metadata: Mapping[str, Any]) -> tuple[str, str, str] | None:
    for one in metadata.get("ownerReferences") or ():
        if isinstance(one, Mapping) and one.get("controller"):
            name = str(one.get("name", ""))
            # It goes into a path.
            plain = name.replace("-", "").replace(".", "").isalnum()
            return (str(one.get("kind")), name, str(one.get("uid"))) if plain else None
    return None
