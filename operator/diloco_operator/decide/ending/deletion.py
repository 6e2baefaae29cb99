"""What is done about a job that is being deleted: its objects in other clusters go first, or are given up.

Kubernetes deletes what the job owns at home, once the job is gone. Only a job with regions in other clusters has a
finalizer, which keeps it until nothing of it is left there. It goes after a bounded time in any case: a cluster that
never answers again must not keep a job, or its namespace, forever. What is left there is reported. Pure.
"""

from datetime import datetime

from diloco.spec.words import listed
from diloco_operator.decide.clusters import HOME, Clusters
from diloco_operator.decide.guide import GUIDE
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.objects.workloads import DEPLOYMENT, STATEFUL_SET
from diloco_operator.decide.observed import ChildKey, Object, Observed
from diloco_operator.decide.plan import JobEvent, Plan
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import parsed_time
from diloco_operator.manifests.abroad import KINDS


def deletion(job_now: JobNow) -> Plan:
    """Decide about a job with a ``deletionTimestamp``.

    Objects in clusters that answer are deleted. The finalizer goes once every cluster has answered that nothing is
    left, or ``options.remote_deletion_seconds`` after the deletion, but not before each cluster has been asked.
    """
    clusters, observed, options = job_now.clusters, job_now.observed, job_now.options
    idle = Plan(again_in_seconds=options.resync_seconds)
    if not clusters.finalized:
        return idle
    going = [key for key, live in observed.children.items() if _to_delete(key, live, clusters)]
    # Learners first: their cluster may be away before all is deleted.
    delete = tuple(sorted(going, key=lambda key: (key.kind != STATEFUL_SET, key)))
    counted = {cluster: _left(cluster, clusters, observed) for cluster in _named(clusters, observed)}
    left = {cluster: count for cluster, count in counted.items() if count != 0}
    if not left:
        return Plan(again_in_seconds=options.resync_seconds, delete=delete, remove_finalizer=True)
    waited = _waited_seconds(job_now.given, job_now.now)
    bound = options.remote_deletion_seconds
    # An operator that was started after the bound asks every cluster once; that takes a minute at most.
    unasked = any(cluster not in clusters.seen for cluster in left)
    if waited < bound or unasked:
        return Plan(again_in_seconds=min(options.poll_seconds, max(bound - waited, 1.0)), delete=delete)
    reason = Reason.CHILDREN_LEFT
    told = listed([_told(clusters, *one) for one in left.items()], "and")
    return Plan(
        again_in_seconds=options.resync_seconds,
        delete=delete,
        remove_finalizer=True,
        left_behind={cluster: count or 0 for cluster, count in left.items()},
        events=(JobEvent(GUIDE[reason].severity, reason.value, f"{bound:.0f} s after the deletion, {told}"),),
    )


def _to_delete(key: ChildKey, live: Object, clusters: Clusters) -> bool:
    """Whether to delete it now: everything in other clusters, and at home what runs pods."""
    if live["metadata"].get("deletionTimestamp"):
        return False
    return key.kind in (STATEFUL_SET, DEPLOYMENT) if key.cluster == HOME else clusters.writable(key)


def _named(clusters: Clusters, observed: Observed) -> tuple[str, ...]:
    seen = (key.cluster for key in observed.children if key.cluster != HOME)
    named = dict.fromkeys([*clusters.others, *sorted(seen)])
    # What two Secrets lead to is counted once.
    return tuple(cluster for cluster in named if not clusters.is_duplicate(cluster))


def _left(cluster: str, clusters: Clusters, observed: Observed) -> int | None:
    """Objects that are left there; None: none was seen, but the cluster does not answer, or not about all kinds."""
    count = sum(key.cluster == cluster for key in observed.children)
    certain = clusters.answers(cluster) and KINDS.isdisjoint(clusters.seen[cluster].unlisted)
    return count or (0 if certain else None)


def _told(clusters: Clusters, cluster: str, count: int | None) -> str:
    problem = clusters.problem(cluster)
    why = f" ({problem.reason})" if problem is not None else ""
    what = f"{count} object(s) are" if count else "an unknown number of objects is"
    return f"{what} left in cluster {cluster}{why}"


def _waited_seconds(job: Object, now: datetime) -> float:
    since = parsed_time(job["metadata"].get("deletionTimestamp"))
    return (now - since).total_seconds() if since is not None else float("inf")
