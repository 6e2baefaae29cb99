"""All causes for a job being Degraded, the gravest first, and whether its pods have to be examined. Pure."""

from collections.abc import Iterable

from diloco.spec.words import shortlist
from diloco_operator.decide.avoided_nodes import not_avoided
from diloco_operator.decide.causes.cause import Cause, gravest_first
from diloco_operator.decide.causes.clusters import cluster_causes
from diloco_operator.decide.causes.pools import Known, learner_causes, syncer_pod_causes
from diloco_operator.decide.causes.syncer import present, reported_causes, training
from diloco_operator.decide.causes.volume import Volume, is_bound, loss_causes, volume_causes
from diloco_operator.decide.clusters import Clusters
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.observed import ChildKey, Looked, Object, Observed, SyncerStatusView
from diloco_operator.decide.readmission import given_up
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import one_line
from diloco_operator.decide.workloads import CLAIM, PoolWorkload, syncer_ready


def unhealthy(workloads: Iterable[PoolWorkload], deployment: Object | None, claim: Object | None) -> bool:
    """Whether something that should run does not, so that its pods have to be examined.

    Args:
        workloads: The pools, but for those in clusters that do not answer: what was last seen there is not examined.
        deployment: The syncer's.
        claim: The syncer's.
    """
    sets = [workload for workload in workloads if workload.live is not None]
    return (
        # A pod too many is on its way out, or cannot be ended.
        any(not workload.healthy or workload.surplus for workload in sets)
        or (deployment is not None and not syncer_ready(deployment))
        or (claim is not None and not is_bound(claim))
    )


def running_causes(job_now: JobNow, lost: frozenset[str]) -> list[Cause]:
    """The causes for a job that should run; ``lost``: uids of its lost pods, which have causes of their own."""
    looked, view = job_now.observed.looked or Looked(), job_now.observed.syncer
    trains = training(view) if isinstance(view, SyncerStatusView) else None
    causes = blocking_causes(job_now.observed)
    causes += cluster_causes(job_now.clusters, job_now.spec.learner_ids, trains)
    causes += revocation_causes(job_now.revoked.problem)
    volume = volume_causes(job_now.claim, looked.events)
    causes += [*volume, *loss_causes(job_now.volume)]
    syncer = syncer_pod_causes(job_now.deployment, looked, job_now.now)
    # The claim's own event says more than that of the pod that waits for it.
    causes += [cause for cause in syncer if not (volume and cause.reason == Reason.VOLUME_PENDING)]
    if job_now.readmitted.problem:
        causes.append(Cause(Reason.READMISSION_IGNORED, job_now.readmitted.problem))
    causes += not_avoided(job_now.avoided)
    held = frozenset[str]().union(*(one.held_learners for one in job_now.workloads))
    known = Known(spared=held, lost=lost)
    if isinstance(view, SyncerStatusView):
        causes += reported_causes(view, frozenset(job_now.spec.learner_ids), job_now.spec.sync.quorum)
        known = Known(present(view), given_up(view) | held, lost)
    causes += learner_causes(job_now.workloads_in_reach, looked, known, job_now.now)
    return gravest_first(causes)


def stopping_causes(observed: Observed, volume: Volume, clusters: Clusters) -> list[Cause]:
    """The causes for a job that should be stopped, but for lost pods: a volume that is gone, clusters."""
    return gravest_first([*blocking_causes(observed), *loss_causes(volume), *cluster_causes(clusters)])


def revocation_causes(problem: str) -> list[Cause]:
    """The cause for what cannot be revoked; ``problem``: why, or empty."""
    return [Cause(Reason.REVOCATION_IGNORED, problem)] if problem else []


def blocking_causes(observed: Observed) -> list[Cause]:
    """A cause for each object that the API server rejects."""
    return [
        Cause(Reason.APPLY_REFUSED, f"the API server rejected {key}: {one_line(text)}")
        for key, text in observed.refused.items()
    ]


def taken_causes(taken: frozenset[ChildKey], retained: Object | None) -> list[Cause]:
    """The causes for names that objects of other owners have; ``retained``: a claim that an earlier job has left."""
    if retained is not None and (key := ChildKey(CLAIM, str(retained["metadata"]["name"]))) in taken:
        text = (
            f"claim {key.name} holds the training of an earlier job of this name; to go on with it, set "
            "spec.syncer.storage.adopt: true; to start from zero, delete the claim or use another name"
        )
        return [Cause(Reason.VOLUME_RETAINED, text), *taken_causes(taken - {key}, None)]
    return [Cause(Reason.NAME_TAKEN, f"names taken by another owner: {_named(taken)}")] if taken else []


def _named(keys: frozenset[ChildKey]) -> str:
    return shortlist(sorted(map(str, keys)))
