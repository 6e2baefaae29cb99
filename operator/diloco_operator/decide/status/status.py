"""The last step of every reconcile: the new status, and whether it is worth writing. Pure."""

from dataclasses import replace
from datetime import datetime
from typing import Final

from diloco import __version__
from diloco.spec.status.job import (
    ExportedModel,
    JobStatus,
    LearnerCounts,
    PoolStatus,
    Progress,
    RegionStatus,
    SyncerEndpoints,
)
from diloco_operator import names
from diloco_operator.decide.causes.pools import Waiting, waiting_learners
from diloco_operator.decide.causes.syncer import left_out, lowered_quorum, present, training
from diloco_operator.decide.ending.ending import End, recorded_end
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.learners.readmission import READMIT, named_in
from diloco_operator.decide.objects.workloads import syncer_ready
from diloco_operator.decide.observed import PodList
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.status.conditions import (
    Verdicts,
    conditions,
    events,
    has_had_a_syncer,
    phase_of,
    reason_of,
)
from diloco_operator.decide.status.progress import due, held_back, moved, progress_of, restarts_of, without_rates
from diloco_operator.decide.status.text import one_line
from diloco_operator.manifests.common import HTTP_PORT, SYNC_PORT
from diloco_operator.names import PoolKey

MODEL_PATH: Final = "model.safetensors"
"""The path of the exported model, relative to the root of the syncer's volume."""


def with_status(
    job_now: JobNow, plan: Plan, verdicts: Verdicts, *, end: End | None = None, reopens: bool = False
) -> Plan:
    """``plan`` with the status and its events, if they contain something new.

    ``end``: the job ends now. ``reopens``: it had ended and goes on.
    """
    before, told = job_now.before, job_now.told
    is_over = end is not None or recorded_end(before) is not None
    running = not is_over and not job_now.suspend
    trains = _training(job_now)
    regions = _regions(job_now, trains or frozenset(), running=running)
    changed: dict[str, object] = {
        "observed_generation": job_now.generation,
        "phase": phase_of(before, verdicts, job_now.now),
        "reason": reason_of(verdicts),
        "operator": f"{job_now.options.name} {__version__}",
        "conditions": conditions(before, verdicts, job_now.generation, job_now.now),
        "learners": _learners(job_now, regions, known=trains is not None, running=running),
        "regions": regions,
        "former_clusters": job_now.clusters.former_now(),
        "restarts": before.restarts if told is None else restarts_of(told),
        "syncer": _endpoints(job_now),
        "outer_optimizer": (told and told.outer_optimizer) or before.outer_optimizer,
        "computing": (told and told.computing) or before.computing,
        # If it ended while it was suspended, the condition stays as it was.
        "start_time": before.start_time if is_over else _start_time(job_now),
    }
    if end is not None:
        changed["completion_time"] = job_now.this_second
        changed["model"] = _exported(job_now.name) if end.phase == "Complete" else None
    if reopens:
        changed |= dict.fromkeys(("start_time", "completion_time", "model"))
    status = before.model_copy(update=changed)
    if told is None:
        status = status.model_copy(update={"progress": without_rates(before.progress)})
    else:
        status = _with_progress(status, before, progress_of(told, job_now.now), job_now.now)
    if status == before:
        return plan
    told_of = events(before, status, named_in(job_now.annotation(READMIT)), job_now.clusters.given_up)
    return replace(plan, status=status.as_object(), events=told_of)


def _start_time(job_now: JobNow) -> datetime | None:
    """When the job was started or last resumed: set anew then, since it is dropped while it is suspended or queued.

    As in a batch/v1 Job. It needs no memory other than the status.
    """
    if not job_now.runs:
        return None
    return job_now.before.start_time or (None if job_now.job is None else job_now.this_second)


def _exported(job: str) -> ExportedModel:
    """Where a complete job's model is."""
    return ExportedModel(persistent_volume_claim=names.syncer(job), path=MODEL_PATH)


def _training(job_now: JobNow) -> frozenset[str] | None:
    """Ids of the learners that train; None: not known."""
    if job_now.told is not None:
        return training(job_now.told)
    # No learner trains before a syncer was ready for the first time.
    return None if has_had_a_syncer(job_now.before) or syncer_ready(job_now.deployment) else frozenset()


def _regions(job_now: JobNow, trains: frozenset[str], *, running: bool) -> tuple[RegionStatus, ...]:
    """Learners by region and pool; ``running``: they should run."""
    clusters = job_now.clusters
    waiting, held = (_waiting(job_now), _held(job_now)) if running else ({}, {})
    out = frozenset[str]() if job_now.told is None else left_out(job_now.told)
    by_region: dict[str, list[PoolStatus]] = {}
    for workload in job_now.workloads:
        region, pool = workload.pool
        desired = workload.desired if running else 0
        known = workload.live is not None or clusters.answers(workload.key.cluster)
        ids = {f"{workload.pool}/{index}" for index in workload.indices} if running else set[str]()
        without, several = waiting.get(workload.pool), workload.nodes > 1
        status = PoolStatus(
            name=pool,
            desired=desired,
            minimum=workload.minimum if running else None,
            waiting=None if without is None else without.learners,
            message=_why_they_wait(job_now, workload.pool, without) if running else None,
            fallback_learners=min(desired, workload.elsewhere) or None,
            ready=job_now.ready_learners(workload) if known else clusters.last_ready(region, pool),
            ready_pods=workload.ready_pods if several else None,
            training=len(ids & trains),
            left_out=len(ids & out) or None,
            given_up=tuple(sorted(workload.given_up)) or None,
            held=held.get(workload.pool) or None,
            queued=(len(workload.queued) or None) if running else None,
            unplaced=(workload.unplaced or None) if running else None,
            nodes_per_learner=workload.nodes if several else None,
            stateful_set=workload.key.name,
        )
        by_region.setdefault(region, []).append(status)
    return tuple(
        clusters.located(
            RegionStatus(
                name=region,
                desired=sum(pool.desired - (pool.fallback_learners or 0) for pool in pools),
                training=sum(pool.training for pool in pools),
                pools=tuple(pools),
            )
        )
        for region, pools in by_region.items()
    )


def _why_they_wait(job_now: JobNow, pool: PoolKey, without: Waiting | None) -> str | None:
    queued = "" if job_now.queue is None else one_line(job_now.queue.why(pool))
    return queued or (None if without is None else without.message)


def _learners(job_now: JobNow, regions: tuple[RegionStatus, ...], *, known: bool, running: bool) -> LearnerCounts:
    """Learners of the whole job; ``known``: how many train."""
    desired, trained = sum(region.desired for region in regions), sum(region.training for region in regions)
    # The syncer does not report how many train, and an earlier number would look current.
    shown = str(trained) if known or not running else "?"
    report = running and job_now.job is not None and job_now.told
    return LearnerCounts(
        desired=desired,
        ready=sum(pool.ready for region in regions for pool in region.pools),
        training=trained,
        summary=f"{shown}/{desired}",
        quorum=lowered_quorum(report, job_now.spec.sync.quorum) if report else None,
    )


def _waiting(job_now: JobNow) -> dict[PoolKey, Waiting]:
    """Learners of elastic pools without a node. Where the pods could not be listed: as they were."""
    if job_now.observed.look_failed:
        known = job_now.pools_before.items()
        return {key: Waiting(pool.waiting, pool.message or "") for key, pool in known if pool.waiting}
    sessions = None if job_now.told is None else present(job_now.told)
    looked = job_now.observed.looked or PodList()
    return waiting_learners(job_now.workloads_in_reach, looked, sessions, job_now.now)


def _held(job_now: JobNow) -> dict[PoolKey, int]:
    """Learners that are held back. Where the pods could not be listed: as they were."""
    before = {key: pool.held for key, pool in job_now.pools_before.items()}
    found = {one.pool: job_now.holdings[one.key].held for one in job_now.workloads if one.key in job_now.holdings}
    return {pool: count for pool, told in found.items() if (count := before.get(pool) if told is None else told)}


def _with_progress(status: JobStatus, before: JobStatus, fresh: Progress, now: datetime) -> JobStatus:
    """``status`` with the syncer's figures, if they are worth a write."""
    old = before.progress
    if old is None or (moved(old, fresh) and due(old, now)):
        return status.model_copy(update={"progress": fresh})
    if not moved(old, fresh):
        return status.model_copy(update={"progress": held_back(old, fresh)})
    # Too early for a write of progress alone; another change takes it along.
    return status if status == before else status.model_copy(update={"progress": fresh})


def _endpoints(job_now: JobNow) -> SyncerEndpoints | None:
    before, view = job_now.before.syncer, job_now.told
    epoch = view.epoch if view is not None else before.epoch if before is not None else 0
    if job_now.job is None:
        return None if before is None else before.model_copy(update={"epoch": epoch})
    host = names.syncer_host(job_now.name, job_now.manifest.metadata.namespace)
    external = job_now.external_endpoint
    return SyncerEndpoints(
        endpoint=f"{host}:{SYNC_PORT}",
        external_endpoint=external.address,
        external_endpoint_missing=external.missing,
        http_endpoint=f"{host}:{HTTP_PORT}",
        epoch=epoch,
        claim_uid=job_now.volume.to_remember,
    )
