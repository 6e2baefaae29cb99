"""A job in a cluster as a place for ``diloco chaos``: pods are deleted with the user's rights, never the operator's.

The operator and Kubernetes bring the pods back as after any other loss.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from diloco.cli.chaos_pods import JobPods
from diloco.cli.cluster_access import ApiServer, AwayError, ClusterError
from diloco.cli.cluster_jobs import Jobs, SeenJob, SyncerUnseenError
from diloco.cli.yaml_text import yaml_documents
from diloco.local.chaos.orders import Order
from diloco.local.chaos.session import is_over
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco.spec import parse_job
from diloco.spec.syncer_status import SyncerStatus

ROLE: Final = "diloco-chaos"
RULES: Final = (
    ({"apiGroups": ["diloco.dev"], "resources": ["dilocojobs"], "verbs": ["get", "list"]}),
    ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}),
    ({"apiGroups": ["apps"], "resources": ["statefulsets", "replicasets", "deployments"], "verbs": ["get"]}),
    ({"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}),
)
"""The rights that it needs: to find the job, find and delete its pods, check whose they are, read the syncer's
status."""


def role_text(namespace: str) -> str:
    """The Role as YAML, with how to give it to somebody."""
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
        self._server = server
        self._jobs = Jobs(server)
        self._namespace = namespace
        seen = self._jobs.one(namespace, name)
        if seen.over:
            raise ChaosError(f"JOB: {name} has ended ({seen.status.phase}); nothing of it is left to hit")
        item = server.get(f"/apis/diloco.dev/v1alpha1/namespaces/{namespace}/dilocojobs/{name}")
        if item.status != HTTPStatus.OK:
            raise ClusterError(f"{server.url}: job {name} was deleted meanwhile")
        self.job = name
        self.uid = str(item.said["metadata"]["uid"])
        spec = _spec(name, item.said)
        self.elsewhere = tuple(region.name for region in spec.regions if region.cluster is not None)
        """Regions in other clusters, whose pods cannot be hit from here."""
        self.all_learners = spec.learner_ids
        self.learner_ids = tuple(one for one in spec.learner_ids if one.partition("/")[0] not in self.elsewhere)
        if not self.learner_ids:
            raise ChaosError(f"JOB: {name} has no learner in this cluster; pods of other clusters are not touched")
        self._pods = JobPods(server, namespace, name, self.uid)
        self._seen: SeenJob = seen
        self._over = False

    def nodes(self) -> dict[str, str]:
        """The node of each learner that is scheduled."""
        return {who: pod.node for who, pod in self._pods.every().items() if pod.node and who in self.learner_ids}

    def hit(self, order: Order) -> tuple[tuple[str, ...], str]:
        """See ``session.Place``. The pods are looked up anew, as each of them may be another one by now."""
        try:
            present = self._pods.every()
        except AwayError as error:
            return (), str(error)
        hit, refused = [], []
        for victim in order.victims:
            pod = present.get(victim)
            if pod is None:
                refused.append(f"{victim}: has no pod")
                continue
            try:
                why = self._pods.delete(pod, grace_seconds=0 if order.kind is FaultKind.KILL else None)
            except AwayError as error:
                why = str(error)
            if why:
                refused.append(why)
            else:
                hit.append(victim)
        return tuple(hit), "; ".join(refused[:3])

    def status(self) -> SyncerStatus | None:
        """See ``session.Place``."""
        try:
            self._seen = self._jobs.one(self._namespace, self.job)
            self._over = self._seen.over
            found = self._jobs.syncer(self._seen)
        except SyncerUnseenError as error:
            if error.lasting:
                raise
            return None
        except AwayError:
            return None
        self._over = self._over or is_over(found)
        return found

    def over(self) -> bool:
        """See ``session.Place``."""
        return self._over

    def heal(self) -> None:
        """See ``session.Place``: deleted pods come back by themselves."""


def _spec(name: str, item: Mapping[str, Any]) -> Any:
    plain = {key: item.get(key) for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}}
    return parse_job(json.dumps(plain), f"job/{name}").spec
