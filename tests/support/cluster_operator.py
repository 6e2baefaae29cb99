"""The operator on a real cluster as its administrator sees it: its pods, their pages, and who holds the Lease.

Also: what must not change in a job, whatever happens to the operator.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from diloco_operator import labels
from diloco_operator.api_server import kinds
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, PodSeen, identities, pod_seen

CHILDREN = ",".join(kind.plural for kind in kinds.CHILDREN)
"""The kinds of all objects that the operator makes."""
_BY_RBAC = re.compile(r" cannot \w+ resource ")


@dataclass(frozen=True)
class ClusterOperator:
    """A release of the chart."""

    cluster: Cluster
    release: Release

    def kubectl(self, *arguments: str) -> str:
        """In its namespace."""
        return self.cluster.kubectl(*arguments, *self.there)

    @property
    def there(self) -> tuple[str, str]:
        return ("--namespace", self.release.namespace)

    @property
    def deployment(self) -> str:
        """Its name, by the release's label."""
        found = self.cluster.items("deployments", self.release.namespace, self._selector)
        name: str = found[0]["metadata"]["name"]
        return name

    def pods(self) -> list[PodSeen]:
        """The pods that are not being deleted."""
        return [pod for pod in self.all_pods() if not pod.leaving]

    def all_pods(self) -> list[PodSeen]:
        """All pods, including those that are being deleted."""
        selector = f"{self._selector},{labels.COMPONENT}=operator"
        return [pod_seen(item) for item in self.cluster.items("pods", self.release.namespace, selector)]

    def holder(self) -> str:
        """The pod that holds the Lease of its namespace; empty: none."""
        spec = self.cluster.get("leases", "diloco-operator", self.release.namespace)["spec"]
        return str(spec.get("holderIdentity") or "").rpartition("_")[0]

    def says(self, pod: str, path: str) -> str:
        """One of a pod's pages; empty: no answer."""
        _, text = self.cluster.api.page(self.release.namespace, pod, path)
        return text

    def works(self, pod: str) -> bool:
        """Whether it holds the Lease and all its watches work."""
        return self.says(pod, "/readyz").startswith("working")

    def total(self, pod: str, metric: str, **wanted: str) -> float:
        """The sum of a metric's samples with these labels, without those about the Lease."""
        families = text_string_to_metric_families(self.says(pod, "/metrics"))
        samples = [one for family in families for one in family.samples if one.name == f"diloco_operator_{metric}"]
        return sum(
            one.value
            for one in samples
            if wanted.items() <= one.labels.items() and not one.labels.get("resource", "").startswith("leases")
        )

    def writes(self, pod: str) -> float:
        """Requests of a pod by which something was made, changed or deleted."""
        verbs = ("create", "update", "patch", "delete")
        return sum(self.total(pod, "api_requests_total", cluster="home", verb=verb) for verb in verbs)

    def forbidden(self, pod: str) -> list[str]:
        """Its log lines about requests that RBAC has refused; quotas and terminating namespaces answer 403 too."""
        return [line for line in self.kubectl("logs", pod).splitlines() if _BY_RBAC.search(line)]

    def wait_for(self, what: Callable[[PodSeen], object], words: str) -> PodSeen:
        """Wait for a pod for which it is true."""
        (found, *_) = wait_until(lambda: [pod for pod in self.pods() if what(pod)], words)
        return found

    def has_taken_over(self, but: str = "") -> PodSeen:
        """Wait for a pod, other than the one with uid ``but``, that works and has reconciled its jobs twice."""
        return self.wait_for(
            lambda pod: (
                pod.uid != but
                and pod.ready
                and self.works(pod.name)
                and self.total(pod.name, "reconcile_seconds_count") >= 2
            ),
            "an operator works",
        )

    @property
    def _selector(self) -> str:
        return f"{labels.INSTANCE}={self.release.name}"


@dataclass(frozen=True)
class Untouched:
    """A job's objects at one moment; equal as long as nothing is created, deleted, written or restarted.

    Counts in a status (ready pods) are not included, because they vary on a busy machine.
    """

    children: dict[str, tuple[str, str]]
    pods: dict[str, tuple[str, int]]

    @classmethod
    def of(cls, job: ClusterJob) -> "Untouched":
        """The job's objects now."""
        items = {f"{one['kind']}/{one['metadata']['name']}": _version(one) for one in job.items(CHILDREN)}
        return cls(items, identities(job.pods()))


def _version(item: dict[str, Any]) -> tuple[str, str]:
    """The uid, and a value that changes with every write."""
    metadata = item["metadata"]
    # Kinds with a status count changes of the specification separately.
    return metadata["uid"], str(metadata.get("generation") or metadata["resourceVersion"])
