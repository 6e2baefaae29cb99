"""The output of `reconcile`: everything to do about a job, as values.

Plans are executed in this order: finalizer, scale, apply, delete, lost pods, and only then status and events. A plan
does not depend on earlier ones: executing it twice is harmless, and if it is interrupted, the next reconcile makes a
new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.manifests.inputs import Placed


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One Kubernetes Event about the job. Recorded only after the status was written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """Fewer pods of an existing set, and no other change: it works even if the API server would reject the template."""

    child: ChildKey
    uid: str
    """The uid of that object, as a precondition."""
    replicas: int


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """One pod to be deleted: by force, because its node does not respond, or to be created anew."""

    child: ChildKey
    """Its kind is ``Pod``."""
    uid: str
    """The pod's uid, as a precondition."""
    reason: Reason | None
    """Of the event that reports it; None: none does."""
    whose: str
    """Whose pod it is, for people: a learner, or the syncer."""
    node: str
    """Empty: not known, or it has none."""
    by_force: bool = True
    """Without a word of its node; False: it has its grace period."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of one object (RFC 7396), with its uid as a precondition."""

    child: ChildKey
    body: Object


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to look again."""

    again_in_seconds: float
    """Reconcile again after this long at the latest; 0: at once."""
    scale: tuple[Scaling, ...] = ()
    """Sets to scale down before anything is applied."""
    add_finalizer: bool = False
    """Give the job `clusters.FINALIZER`, before anything else. Plans create nothing in other clusters until it has
    it."""
    apply: tuple[Placed, ...] = ()
    """Desired objects that are missing or differ from what is observed: server-side apply, force, in this order. Where
    the API server refuses one for good: go on with the others, put it into `Observed.refused`, and reconcile again
    before any status is written. What is refused stays in here: it is tried once in each round. Each has an outcome of
    its own: none of them keeps the others, or the status, from being written."""
    adopt: frozenset[ChildKey] = frozenset()
    """Of ``apply``: objects of nobody that become the job's. Their bodies have the uid they were seen with, as a
    precondition."""
    delete: tuple[ChildKey, ...] = ()
    """Children that are no longer wanted."""
    delete_pods: tuple[PodDeletion, ...] = ()
    """Lost pods, and pods to be created anew, after everything else but the status. A bounded number; the next plan has
    the others. Where the API server refuses it: put the cluster into `Observed.pods_forbidden`, and reconcile again
    before any status is written."""
    release_pods: tuple[Patch, ...] = ()
    """Pods of learners that Kueue has admitted: where they run, and without the gate that held them back. After the
    pods that are deleted. A bounded number; the next plan has the others."""
    workload_statuses: tuple[Patch, ...] = ()
    """Parts of the statuses of Workloads that are not Kueue's to write."""
    readmit_left: str | None = None
    """What the annotation `readmission.READMIT` of the job is to say, after the status; None: it stays."""
    readmit_events: tuple[JobEvent, ...] = ()
    """Recorded after that, so that they are told once."""
    learner_events: tuple[JobEvent, ...] = ()
    """About learners that came and went: no condition says so, and they are recorded whether or not the status
    changes."""
    remove_finalizer: bool = False
    """Take `clusters.FINALIZER` from the job, after everything else and after the events: then the job is gone."""
    left_behind: Mapping[str, int] = field(default_factory=dict)
    """Objects that a deleted job leaves in other clusters, by cluster, for a metric. Only with ``remove_finalizer``."""
    delete_job: bool = False
    """Its time to live is over: delete it in the background, with the uid (and resourceVersion) it was seen with as
    precondition."""
    status: Object | None = None
    """The whole status: server-side apply on the status subresource, force. None: as it is."""
    events: tuple[JobEvent, ...] = ()
    """Empty where ``status`` is None, but for a deleted job."""
