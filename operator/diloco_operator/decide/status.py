"""The last step of every reconcile: the new status, and whether it is worth writing. Pure."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from diloco.spec.status import ExportedModel, JobStatus, Progress, SyncerEndpoints
from diloco_operator import names
from diloco_operator.decide.causes.pools import Waiting, waiting_learners
from diloco_operator.decide.causes.syncer import left_out, lowered_quorum, present, training
from diloco_operator.decide.conditions import (
    Heard,
    PodsSeen,
    Verdicts,
    conditions,
    counts,
    events,
    has_had_a_syncer,
    phase_of,
    reason_of,
)
from diloco_operator.decide.ending import recorded_end
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.observed import Looked, SyncerStatusView
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.progress import due, held_back, moved, progress_of, restarts_of, without_rates
from diloco_operator.decide.readmission import named_in
from diloco_operator.decide.scale import start_time
from diloco_operator.decide.workloads import syncer_ready
from diloco_operator.manifests.common import HTTP_PORT, SYNC_PORT
from diloco_operator.names import PoolKey


def with_status(
    job_now: JobNow,
    plan: Plan,
    verdicts: Verdicts,
    *,
    model: ExportedModel | None = None,
    completed: datetime | None = None,
) -> Plan:
    """``plan`` with the status and its events, if they contain something new."""
    before, view = job_now.before, job_now.observed.syncer
    finished = completed is not None
    told = view if isinstance(view, SyncerStatusView) and recorded_end(before) is None else None
    running = not finished and not job_now.spec.suspend
    # No learner trains before a syncer was ready for the first time.
    known = None if has_had_a_syncer(before) or syncer_ready(job_now.deployment) else frozenset[str]()
    heard = Heard(known) if told is None else _heard(told, job_now.spec.sync.quorum)
    pods = PodsSeen(_waiting(job_now, told), _held(job_now), job_now.elsewhere) if running else PodsSeen()
    counted = counts(job_now.workloads, heard, job_now.clusters, running=running, pods=pods)
    status = before.model_copy(
        update={
            "observed_generation": job_now.job.metadata.generation,
            "phase": phase_of(before, verdicts, job_now.now),
            "reason": reason_of(verdicts),
            "conditions": conditions(before, verdicts, job_now.job.metadata.generation, job_now.now),
            "learners": counted.learners,
            "regions": counted.regions,
            "restarts": before.restarts if told is None else restarts_of(told),
            "avoided_nodes": job_now.avoided if running else (),
            "syncer": _endpoints(job_now, told),
            "outer_optimizer": (told and told.outer_optimizer) or before.outer_optimizer,
            "model": model,
            # If it ended while it was suspended, the condition stays as it was.
            "start_time": before.start_time
            if finished
            else start_time(before, job_now.latest, suspended=job_now.spec.suspend),
            "completion_time": completed,
        }
    )
    if told is None:
        status = status.model_copy(update={"progress": without_rates(before.progress)})
    else:
        status = with_progress(status, before, progress_of(told, job_now.now), job_now.now)
    return if_new(plan, before, status, named_in(job_now.readmit))


def _waiting(job_now: JobNow, view: SyncerStatusView | None) -> dict[PoolKey, Waiting]:
    """Learners of elastic pools without a node. Where the pods could not be listed: as they were."""
    if job_now.observed.look_failed:
        known = [(PoolKey(region.name, pool.name), pool) for region in job_now.before.regions for pool in region.pools]
        return {key: Waiting(pool.waiting, pool.message or "") for key, pool in known if pool.waiting}
    sessions = None if view is None else present(view)
    looked = job_now.observed.looked or Looked()
    return waiting_learners(job_now.workloads_in_reach, looked, sessions, job_now.now)


def _held(job_now: JobNow) -> dict[PoolKey, int]:
    """Pods that are held back. Where the pods could not be listed: as they were."""
    before = {PoolKey(region.name, pool.name): pool.held for region in job_now.before.regions for pool in region.pools}
    found = {one.pool: job_now.holdings[one.key].held for one in job_now.workloads if one.key in job_now.holdings}
    return {pool: count for pool, told in found.items() if (count := before.get(pool) if told is None else told)}


def _heard(view: SyncerStatusView, quorum: int) -> Heard:
    return Heard(training(view), left_out(view), lowered_quorum(view, quorum))


def with_progress(status: JobStatus, before: JobStatus, fresh: Progress, now: datetime) -> JobStatus:
    """``status`` with the syncer's figures, if they are worth a write."""
    old = before.progress
    if old is None or (moved(old, fresh) and due(old, now)):
        return status.model_copy(update={"progress": fresh})
    if not moved(old, fresh):
        return status.model_copy(update={"progress": held_back(old, fresh)})
    # Too early for a write of progress alone; another change takes it along.
    return status if status == before else status.model_copy(update={"progress": fresh})


def _endpoints(job_now: JobNow, view: SyncerStatusView | None) -> SyncerEndpoints:
    host = names.syncer_host(job_now.name, job_now.job.metadata.namespace)
    before = job_now.before.syncer
    epoch = view.epoch if view is not None else before.epoch if before is not None else 0
    external = job_now.external_endpoint
    return SyncerEndpoints(
        endpoint=f"{host}:{SYNC_PORT}",
        external_endpoint=external.address,
        external_endpoint_missing=external.missing,
        http_endpoint=f"{host}:{HTTP_PORT}",
        epoch=epoch,
        claim_uid=job_now.volume.to_remember,
    )


def if_new(plan: Plan, before: JobStatus, after: JobStatus, ordered: Collection[str]) -> Plan:
    """``plan`` with the status and its events, if the status has changed; ``ordered``: as in `events`."""
    if after == before:
        return plan
    return replace(plan, status=after.as_object(), events=events(before, after, ordered))
