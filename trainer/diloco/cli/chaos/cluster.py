"""A job in a cluster as a place for ``diloco chaos``: pods are deleted with the user's rights, never the operator's.

The operator and Kubernetes bring the pods back as after any other loss.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from diloco.cli.chaos.pods import JobPod, JobPods
from diloco.cli.live.cluster_access import ApiServer, AwayError, ClusterError
from diloco.cli.live.cluster_jobs import Jobs, NoSuchJobError, SyncerUnseenError, seen_job
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.runtime.yaml_text import yaml_documents
from diloco.spec import DiLoCoJob, parse_job
from diloco.spec.names.learner_ids import region_of
from diloco.spec.status.engine import OVER
from diloco.spec.status.syncer import SyncerStatus

ROLE: Final = "diloco-chaos"
RULES: Final = (
    ({"apiGroups": ["diloco.dev"], "resources": ["dilocojobs"], "verbs": ["get", "list"]}),
    ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}),
    ({"apiGroups": ["apps"], "resources": ["statefulsets", "replicasets", "deployments"], "verbs": ["get"]}),
    ({"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}),
)
"""The rights that it needs: to find the job, find and delete its pods, check whose they are, read the syncer's
status."""

_MOST_REASONS: Final = 3
"""Most reasons of one fault that are told in full (ours)."""


def role_text(namespace: str) -> str:
    """The Role as YAML, with how to give it to a user."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ROLE, "namespace": namespace},
        "rules": list(RULES),
    }
    return (
        "# What diloco chaos needs in a namespace. A Role cannot tell one job's pods from another's: give it in\n"
        "# namespaces in which the user may delete every pod. Then bind it to the user:\n"
        f"#   kubectl create rolebinding {ROLE} --namespace {namespace} --role {ROLE} --user NAME\n"
        + yaml_documents([role])
    )


class ClusterPlace:
    """One job in a cluster."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        """Read the job and its pods.

        Raises:
            ChaosError: the job is over, or all its learners are in other clusters.
            ClusterError: it cannot be read.
        """
        from diloco_operator.decide.learners.fallback import with_all_fallbacks

        self._jobs = Jobs(server)
        self._namespace = namespace
        item = self._jobs.item(namespace, name)
        seen = seen_job(item)
        if seen.over:
            raise ChaosError(f"JOB: {name} has ended ({seen.status.phase}); nothing of it is left to hit")
        self.job = name
        self.uid = str(item["metadata"]["uid"])
        job = _job(name, item)
        self.elsewhere = tuple(region.name for region in job.spec.regions if region.cluster is not None)
        """Regions in other clusters, whose pods cannot be hit from here."""
        self.all_learners = job.spec.learner_ids
        most = with_all_fallbacks(job).spec.learner_ids
        self.learner_ids = tuple(one for one in most if region_of(one) not in self.elsewhere)
        """Everybody who can be hit, with learners that run in a fallback pool only while their own pool lacks nodes."""
        self.fallbacks = frozenset(self.learner_ids) - frozenset(self.all_learners)
        """Those of a fallback pool."""
        if not self.learner_ids:
            raise ChaosError(f"JOB: {name} has no learner in this cluster; pods of other clusters are not touched")
        nodes = {pool: of_pool.nodes_per_learner for pool, of_pool in job.spec.pools.items()}
        self._pods = JobPods(server, namespace, name, self.uid, nodes)
        self._over = False
        self._failed: ClusterError | None = None
        """Why no fault can be injected any more."""

    def nodes(self) -> dict[str, str]:
        """The node of each learner that runs on one."""
        reachable, present = frozenset(self.learner_ids), self._pods.every()
        return {who: pod.node for who, pod in present.items() if not pod.refusal and who in reachable}

    def hit(self, fault: Fault) -> tuple[tuple[str, ...], str]:
        """See ``session.Place``. The pods are read again, as each may have been replaced."""
        try:
            present = self._pods.every()
        except ClusterError as error:
            return (), self._noted(error)
        hit: list[str] = []
        missed: list[str] = []
        for victim in _victims(fault, present):
            pod = present.get(victim)
            if pod is None and victim in self.fallbacks:
                continue  # its pool has no more learners than its own at present
            why = f"{victim}: has no pod" if pod is None else self._delete(pod, fault.kind)
            if why:
                missed.append(why)
            else:
                hit.append(victim)
            if self._failed is not None:
                break
        # At a rate, a learner fails while it exists. Whoever names a time expects something to be there.
        if not hit and not missed and (fault.around or fault.rate_per_hour is None):
            missed.append(f"{fault.target}: no learner runs there")
        return tuple(hit), _reasons(missed)

    def status(self) -> SyncerStatus | None:
        """See ``session.Place``.

        Raises:
            ChaosError: the job was deleted, or is being deleted.
            ClusterError: it cannot be read any more.
        """
        try:
            seen = seen_job(self._item())
            self._over = seen.over
            found = self._jobs.syncer(seen)
        except SyncerUnseenError as error:
            if error.lasting:
                raise
            return None
        except AwayError:
            return None
        self._over = self._over or found.phase in OVER
        return found

    def over(self) -> bool:
        """See ``session.Place``.

        Raises:
            ClusterError: pods cannot be listed or deleted any more.
        """
        if self._failed is not None:
            raise self._failed
        return self._over

    def heal(self) -> None:
        """See ``session.Place``: Kubernetes replaces deleted pods."""

    def _item(self) -> Mapping[str, Any]:
        """The job, if it is still the one of the beginning: another one may have its name by now."""
        try:
            item = self._jobs.item(self._namespace, self.job)
        except NoSuchJobError as error:
            raise ChaosError(f"JOB: {self.job} was deleted") from error
        if item["metadata"].get("uid") != self.uid:
            raise ChaosError(f"JOB: {self.job} was deleted; the job that has its name now is another one")
        if item["metadata"].get("deletionTimestamp"):
            raise ChaosError(f"JOB: {self.job} is being deleted")
        return item

    def _delete(self, pod: JobPod, kind: FaultKind) -> str:
        """Delete a pod; returns why it was not, or nothing."""
        if pod.refusal:
            return f"{pod.who}: {pod.refusal}"
        try:
            return self._pods.delete(pod, grace_seconds=0 if kind is FaultKind.KILL else None)
        except ClusterError as error:
            return self._noted(error)

    def _noted(self, error: ClusterError) -> str:
        """The error as a reason for the report; one that no later attempt can mend ends the session too."""
        if not isinstance(error, AwayError):
            self._failed = error
        return str(error)


def _reasons(missed: Sequence[str]) -> str:
    more = len(missed) - _MOST_REASONS
    return "; ".join([*missed[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])


def _victims(fault: Fault, present: Mapping[str, JobPod]) -> tuple[str, ...]:
    """Whom a fault is for now: pods may have moved to another node since it was planned."""
    if not fault.around:
        return fault.victims
    there = (present.get(who) for who in fault.around)
    return tuple(pod.who for pod in there if pod is not None and pod.node == fault.target and not pod.refusal)


def _job(name: str, item: Mapping[str, Any]) -> DiLoCoJob:
    plain = {key: item.get(key) for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}}
    return parse_job(json.dumps(plain), f"job/{name}")
