"""The Workloads by which a job with ``spec.queue`` asks Kueue for quota.

One is for the syncer with the learners that it needs, and each further learner has its own. So quota is given and taken
back learner by learner.

Kueue reads of a pod template what it requests and which nodes it can have. The rest is left out, as there may be ten
thousand Workloads. No object but these names the queue: Kueue would take a set that does for one of its own
(kubernetes-sigs/kueue#2612).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.placement import Pool
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.from_users.everywhere import everywhere
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.names import PoolKey

GROUP: Final = "kueue.x-k8s.io"
SYNCER: Final = "syncer"
"""The syncer's pod set. That of a pool has the name of its StatefulSet."""
_MOST_POOLS: Final = 7
"""Kueue's limit of eight pod sets, less the syncer's."""
_OF_POD: Final = ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "resourceClaims")
_OF_CONTAINER: Final = ("name", "image", "resources", "restartPolicy")
_CONTAINERS: Final = ("initContainers", "containers")


def of_first(spec: JobSpec, pools: Mapping[PoolKey, Pool]) -> dict[PoolKey, int]:
    """How many learners of each pool are in the Workload with the syncer.

    ``minimumLearners`` of each pool that has it, and if that is less than ``sync.quorum``, which merges need, so many
    more of the first pools. Of more than `_MOST_POOLS` each learner of the others has a Workload of its own.
    """
    least = {key: min(pool.minimum_learners, pool.size) for key, pool in pools.items() if pool.minimum_learners}
    least = dict(list(least.items())[:_MOST_POOLS])
    for key, pool in pools.items():
        lacking = min(spec.sync.quorum - sum(least.values()), pool.size - least.get(key, 0))
        if lacking > 0 and (key in least or len(least) < _MOST_POOLS):
            least[key] = least.get(key, 0) + lacking
    return {key: count for key, count in least.items() if count}


def learner_workload(set_name: str, index: int) -> str:
    """The name of the Workload of one learner."""
    return f"{set_name}-{index}"


def first_workload(job_name: str) -> str:
    """The name of the Workload with the syncer."""
    return names.syncer(job_name)


def pod_set(name: str, template: Manifest, pods: int) -> Manifest:
    """Pods of one template."""
    pod = template["spec"]
    found = {key: pod[key] for key in _OF_POD if key in pod}
    for key in _CONTAINERS:
        if key in pod:
            found[key] = [{field: one[field] for field in _OF_CONTAINER if field in one} for one in pod[key]]
    if node := pod.get("affinity", {}).get("nodeAffinity"):
        found["affinity"] = {"nodeAffinity": node}
    return {"name": name, "count": pods, "template": {"metadata": {}, "spec": found}}


def spec(job: JobSpec, pod_sets: Sequence[Manifest], priority: int | None) -> Manifest:
    """The spec of a Workload; ``priority``: that of the queue's WorkloadPriorityClass."""
    queue = job.queue
    assert queue is not None
    found: Manifest = {"queueName": queue.name, "podSets": list(pod_sets)}
    if queue.priority_class is None:
        return found
    reference = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": queue.priority_class}
    return {**found, "priorityClassRef": reference, "priority": priority}


def workload(job: DiLoCoJob, name: str, its_spec: Manifest, annotations: Mapping[str, str]) -> Manifest:
    """A Workload."""
    metadata = common.metadata(job, name, labels.of_job(job.metadata.name, labels.JOB_WIDE), annotations)
    made = {"apiVersion": f"{GROUP}/v1beta2", "kind": "Workload", "metadata": metadata, "spec": its_spec}
    return everywhere(made, job.spec, ())
