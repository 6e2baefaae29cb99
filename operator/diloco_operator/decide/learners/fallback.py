"""Learners that find no node in their pool start in the region's next one, and end there when theirs has nodes. Pure.

The job is taken as if the next pool had so many more learners, and as if the pool that lacks nodes were elastic by so
many. Everything else follows from that as from any change of a pool's size: objects, the syncer's list of learners,
conditions. How many there are is in the status, as pods whose node has just been found do not show it any more.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from diloco.spec import DiLoCoJob
from diloco.spec.checks import MAXIMUM_LEARNERS, problems
from diloco.spec.placement import Pool, Region
from diloco_operator.decide.causes.pods import unschedulable_since
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.learners.held_pods import set_of
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import Object
from diloco_operator.names import PoolKey


def with_fallbacks(job_now: JobNow) -> JobNow:
    """The job as it is to be carried out now."""
    if job_now.suspend:
        return job_now
    given, free = job_now, MAXIMUM_LEARNERS - len(job_now.spec.learner_ids)
    for key, pool in job_now.pools.items():
        if pool.fallback_after_seconds is None:
            continue
        # What an earlier pool has added to this one may find no node either.
        workload = next(one for one in job_now.workloads if one.pool == key)
        learners = min(_elsewhere(job_now, workload, timedelta(seconds=pool.fallback_after_seconds)), free)
        if learners <= 0:
            continue
        free -= learners
        job = with_more(job_now.manifest, key, learners, len(workload.given_up))
        job_now = replace(job_now, job=job, elsewhere={**job_now.elsewhere, key: learners})
    # No process would read a manifest with problems.
    return given if job_now is not given and problems(job_now.spec) else job_now


def _elsewhere(job_now: JobNow, workload: PoolWorkload, patience: timedelta) -> int:
    """How many of a pool's learners should run in the next one."""
    before, looked = job_now.before.fallback_learners.get(str(workload.pool), 0), job_now.pods_by_set
    if not job_now.clusters.answers(workload.key.cluster) or workload.live is None:
        return min(before, workload.wanted)
    if looked is None:
        # Its controller also counts pods that are to be held back, until they are gone.
        return 0 if workload.healthy and not workload.held else min(before, workload.wanted)
    own = workload.by_learner(looked.get(set_of(workload), {}))
    pods = {index: own.get(index, []) for index in workload.indices - workload.given_up}
    waiting = {index for index, its in pods.items() if any(_waits(pod, job_now.now, patience) for pod in its)}
    ready = sum(workload.is_ready(its) for its in pods.values())
    # One that has its nodes now is replaced only when it works.
    return max(len(waiting | workload.apart), min(before, workload.wanted - ready))


def _waits(pod: Object, now: datetime, patience: timedelta) -> bool:
    since = unschedulable_since(pod)
    return since is not None and now - since >= patience


def with_more(job: DiLoCoJob, key: PoolKey, learners: int, given_up: int = 0) -> DiLoCoJob:
    """The job with so many learners of a pool in the region's next one; ``given_up``: others of the pool."""
    regions = [_moved(one, key.pool, learners, given_up) if one.name == key.region else one for one in job.spec.regions]
    return job.model_copy(update={"spec": job.spec.model_copy(update={"regions": tuple(regions)})})


def with_all_fallbacks(job: DiLoCoJob) -> DiLoCoJob:
    """The job with every learner that it can get if no pool with a fallback has a node."""
    for region in job.spec.regions:
        for place, pool in enumerate(region.pools):
            key = PoolKey(region.name, pool.name)
            if pool.fallback_after_seconds is not None:
                # An earlier one may have added to it.
                size = next(one for one in job.spec.regions if one.name == region.name).pools[place].size
                job = with_more(job, key, size) if size else job
    return job


def _moved(region: Region, name: str, count: int, given_up: int) -> Region:
    pools = list(region.pools)
    place = next(place for place, pool in enumerate(pools) if pool.name == name)
    lacking, following = pools[place], pools[place + 1]
    least = _least(lacking)
    # Learners that the one pool cannot do without, the other cannot do without either.
    needed = min(count, least - min(least, max(0, lacking.size - given_up - count)))
    pools[place] = _resized(lacking, lacking.learners, least - needed)
    pools[place + 1] = _resized(following, following.learners + count, _least(following) + needed)
    return region.model_copy(update={"pools": tuple(pools)})


def _least(pool: Pool) -> int:
    return pool.size if pool.minimum_learners is None else pool.minimum_learners


def _resized(pool: Pool, learners: int, least: int) -> Pool:
    return pool.model_copy(update={"learners": learners, "minimum_learners": least})
