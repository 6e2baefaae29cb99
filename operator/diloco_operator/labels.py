"""Labels: what every object of a job carries, and how the objects are found.

The selector of an existing StatefulSet or Deployment cannot be changed: what ``*_selector`` return must never change.
"""

from collections.abc import Mapping
from typing import Any, Final

from diloco_operator.names import PoolKey

FIELD_MANAGER: Final = "diloco-operator"
"""The field manager of everything that the operator applies."""

NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
JOB: Final = "diloco.dev/job"
REGION: Final = "diloco.dev/region"
POOL: Final = "diloco.dev/pool"
JOB_UID: Final = "diloco.dev/job-uid"
"""In other clusters only: the job's uid. An owner reference does not lead from one cluster to another."""
HOME: Final = "diloco.dev/home"
"""In other clusters only: the id of the home that the job is at. What jobs that are gone left there is found by it."""
HOME_NAMESPACE: Final = "diloco.dev/home-namespace"
"""In other clusters only: the job's namespace at home."""

RETAINED_BY: Final = "diloco.dev/retained-by"
"""On a claim that outlives its job, in place of an owner reference: the job's uid."""

LEARNER: Final = "learner"
"""The component label of learners' objects."""
SYNCER: Final = "syncer"
"""The component label of the syncer's objects."""
JOB_WIDE: Final = "job"
"""The component label of objects that belong to the job as a whole."""

MONITORING: Final = "diloco.dev/monitoring"
"""On a namespace, ``"true"``: its pods may read the metrics of jobs."""
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""On every namespace, its name; set by the API server."""
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""On a StatefulSet's pods, their index; set by its controller (Kubernetes 1.28)."""

OF_OPERATOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"
"""Selector text: every object that a diloco operator has created."""


def of_job(job: str, component: str) -> dict[str, str]:
    """The labels of an object of a job."""
    return {
        NAME: "diloco",
        INSTANCE: job,
        COMPONENT: component,
        PART_OF: "diloco",
        MANAGED_BY: FIELD_MANAGER,
        JOB: job,
    }


def of_pool(job: str, pool: PoolKey) -> dict[str, str]:
    """The labels of a pool's objects and pods."""
    return {**of_job(job, LEARNER), REGION: pool.region, POOL: pool.pool}


def learners_selector(job: str) -> dict[str, str]:
    """Matches the pods of all learners of a job."""
    return {COMPONENT: LEARNER, JOB: job}


def pool_selector(job: str, pool: PoolKey) -> dict[str, str]:
    """Matches the pods of a pool's learners."""
    return {COMPONENT: LEARNER, JOB: job, REGION: pool.region, POOL: pool.pool}


def syncer_selector(job: str) -> dict[str, str]:
    """Matches the syncer's pod."""
    return {COMPONENT: SYNCER, JOB: job}


def of_home(home_id: str, namespace: str, uid: str) -> dict[str, str]:
    """What objects and pods in another cluster carry too, to show whose they are."""
    return {JOB_UID: uid, HOME: home_id, HOME_NAMESPACE: namespace}


def belongs(own: object, uid: str) -> bool:
    """Whether an object in another cluster that has these labels belongs to the job with this uid."""
    return isinstance(own, Mapping) and own.get(JOB_UID) == uid


def is_retained(metadata: Mapping[str, Any], uid: str = "") -> bool:
    """Whether an object with this metadata is a claim that a job retains; with ``uid``: the job with this uid."""
    own = metadata.get("labels") or {}
    by = own.get(RETAINED_BY)
    return not metadata.get("ownerReferences") and own.get(COMPONENT) == SYNCER and bool(by) and uid in ("", by)


def text(selector: Mapping[str, str]) -> str:
    """A selector as a query parameter: ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in selector.items())
