"""All causes for a job being Degraded. Pure."""

from diloco.spec.words import shortlist
from diloco_operator.decide.causes.bad_nodes import bad_node_causes
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.clusters import cluster_causes
from diloco_operator.decide.causes.held import kept_causes
from diloco_operator.decide.causes.pools import Spared, learner_causes, syncer_pod_causes
from diloco_operator.decide.causes.syncer import cut_off, present, reported_causes, storage_causes, training
from diloco_operator.decide.causes.volume import loss_causes, volume_causes
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.learners.held_pods import set_of
from diloco_operator.decide.learners.readmission import given_up
from diloco_operator.decide.objects.workloads import CLAIM
from diloco_operator.decide.observed import ChildKey, Object, Observed, PodList, SyncerStatusView
from diloco_operator.decide.queue.queue_now import QUEUE_NAME, WORKLOAD
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line
from diloco_operator.objects import labels_of


def running_causes(job_now: JobNow, lost: frozenset[str]) -> list[Cause]:
    """The causes for a job that should run; ``lost``: uids of its lost pods, which have causes of their own."""
    looked, view = job_now.observed.looked or PodList(), job_now.observed.syncer
    trains = training(view) if isinstance(view, SyncerStatusView) else None
    causes = blocking_causes(job_now.observed)
    causes += cluster_causes(job_now.clusters, job_now.spec.learner_ids, trains)
    volume = volume_causes(job_now.claim, looked.events)
    causes += [*volume, *loss_causes(job_now.volume)]
    syncer = syncer_pod_causes(job_now.deployment, job_now.syncer_pods, looked, job_now.now)
    # The claim's own event says more than that of the pod that waits for it.
    causes += [cause for cause in syncer if not (volume and cause.reason == Reason.VOLUME_PENDING)]
    pods = job_now.pods_by_set or {}
    pools = [(one, pods.get(set_of(one), {})) for one in job_now.workloads]
    causes += [*bad_node_causes(pools, job_now.now), *kept_causes(pools, job_now.observed.pods_forbidden)]
    out = frozenset[str]().union(*(one.out_learners for one in job_now.workloads))
    undeletable = job_now.observed.pods_forbidden
    known = Spared(spared=out, lost=lost, undeletable=undeletable)
    if isinstance(view, SyncerStatusView):
        causes += reported_causes(view, frozenset(job_now.spec.learner_ids), job_now.spec.sync)
        known = Spared(present(view), given_up(view) | out, lost, cut_off(view), undeletable)
    return causes + learner_causes(job_now.workloads_in_reach, looked, known, job_now.holdings, job_now.now)


def stopping_causes(job_now: JobNow) -> list[Cause]:
    """The causes for a job that should be stopped, but for lost pods: its storage, clusters."""
    storage = [] if job_now.told is None else storage_causes(job_now.told)
    return [
        *blocking_causes(job_now.observed),
        *loss_causes(job_now.volume),
        *storage,
        *cluster_causes(job_now.clusters),
    ]


def readmission_causes(job_now: JobNow) -> list[Cause]:
    """The cause for learners that the user lets back in, and of whom the syncer cannot be told."""
    problem = job_now.readmitted.problem
    return [Cause(Reason.READMISSION_IGNORED, problem)] if problem else []


def blocking_causes(observed: Observed) -> list[Cause]:
    """A cause for each object that the API server rejects, or that something keeps changing; and those of a queue."""
    return [
        *_queue_causes(observed),
        *(
            Cause(Reason.APPLY_REFUSED, f"the API server rejected {key}: {one_line(text)}")
            for key, text in observed.refused.items()
        ),
        *(
            Cause(Reason.OBJECT_REVERTED, f"something keeps changing {key}: {one_line(text)}")
            for key, text in observed.reverted.items()
        ),
    ]


def _queue_causes(observed: Observed) -> list[Cause]:
    """The causes for a queue of which something cannot be read, or of which Kueue manages more than the Workloads."""
    if observed.kueue is None:
        return []
    marked = [key for key, one in observed.children.items() if key.kind != WORKLOAD and QUEUE_NAME in labels_of(one)]
    both = (
        f"Kueue queues {shortlist(sorted(map(str, marked)))} too, by the label {QUEUE_NAME}; name no LocalQueue of the "
        "namespace 'default', and put the label on nothing of the job"
    )
    found = (observed.kueue.problem, both if marked else "")
    return [Cause(Reason.QUEUE_UNUSABLE, one_line(text)) for text in found if text]


def taken_causes(taken: frozenset[ChildKey], retained: Object | None) -> list[Cause]:
    """The causes for names that objects of other owners have; ``retained``: a claim that an earlier job has left."""
    if retained is not None and (key := ChildKey(CLAIM, str(retained["metadata"]["name"]))) in taken:
        text = (
            f"claim {key.name} holds the training of an earlier job of this name; to go on with it, set "
            "spec.syncer.storage.adoptRetained: true; to start from zero, delete the claim or use another name"
        )
        return [Cause(Reason.NAME_TAKEN, text), *taken_causes(taken - {key}, None)]
    named = shortlist(sorted(map(str, taken)))
    return [Cause(Reason.NAME_TAKEN, f"names taken by another owner: {named}")] if taken else []
