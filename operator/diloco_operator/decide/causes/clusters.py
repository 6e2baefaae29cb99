"""What is wrong with the other clusters of a job, and for how long they have not answered. Pure."""

from collections.abc import Collection

from diloco.spec.words import listed
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.clusters import GIVE_UP_PLACE, Clusters
from diloco_operator.decide.reasons import Reason


def cluster_causes(
    clusters: Clusters, learners: Collection[str] = (), training: Collection[str] | None = None
) -> list[Cause]:
    """The causes for clusters that are not as they should be.

    Args:
        clusters: The job's.
        learners: Ids of all learners of the job.
        training: Ids of those that train, as the syncer reports; None: not known.
    """
    causes = []
    former = {one.cluster: one.place for one in clusters.former_now()}
    for cluster in (*clusters.named, *former):
        problem = clusters.problem(cluster) or clusters.credentials_problem(cluster)
        if problem is not None:
            seen = clusters.last_seen(cluster)
            age = f"; last seen {seen:%Y-%m-%dT%H:%M:%SZ}" if seen is not None else ""
            words = "" if training is None or seen is None else _learners(clusters, cluster, learners, training)
            if cluster in former and problem.reason != Reason.CLUSTER_MOVED:
                words = f"; the job's objects there stay until it answers, or until {GIVE_UP_PLACE}={former[cluster]}"
            causes.append(Cause(problem.reason, f"{_named(clusters, cluster)}: {problem.message}{age}{words}"))
    return causes


def _learners(clusters: Clusters, cluster: str, learners: Collection[str], training: Collection[str]) -> str:
    """What the syncer knows of learners that the operator cannot see."""
    here = [learner for learner in learners if clusters.regions.get(learner.partition("/")[0]) == cluster]
    return f"; {sum(learner in training for learner in here)} of {len(here)} learners there train"


def _named(clusters: Clusters, cluster: str) -> str:
    regions = clusters.regions_in(cluster)
    if not regions:
        return f"cluster {cluster} (of removed regions)"
    which = "region" if len(regions) == 1 else "regions"
    return f"cluster {cluster} ({which} {listed(regions, 'and')})"
