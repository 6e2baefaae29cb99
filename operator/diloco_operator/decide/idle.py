"""What is done about a job that does not run: it has ended, it is to be stopped, or it is invalid.

All of this works even if the spec cannot be read or its objects cannot be built: it needs only the live objects, the
status and a few fields (`stop_fields`). Pure.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from diloco.spec.status import ExportedModel, JobStatus
from diloco.spec.words import listed
from diloco_operator import names
from diloco_operator.decide.causes.all import blocking_causes, revocation_causes, stopping_causes
from diloco_operator.decide.causes.cause import Cause, as_grave, gravest_first, joined
from diloco_operator.decide.causes.pools import FOUND_BY_LOOKING
from diloco_operator.decide.causes.volume import START_ANEW, Volume, has_trained
from diloco_operator.decide.certificates import revoked_list
from diloco_operator.decide.clusters import FINALIZER, HOME, Clusters, said_regions
from diloco_operator.decide.conditions import (
    AS_EXPECTED,
    IN_PROGRESS,
    Heard,
    PodsSeen,
    Verdict,
    Verdicts,
    conditions,
    counts,
    phase_of,
    reason_of,
    taken_over,
)
from diloco_operator.decide.ending import End, deadline_end, seconds_to_live
from diloco_operator.decide.lost_pods import SYNCER_STOPPED, LostPodPolicy, lost_pods, policy_of
from diloco_operator.decide.lost_pods import Scene as LostScene
from diloco_operator.decide.lost_pods import Verdict as LostVerdict
from diloco_operator.decide.observed import ChildKey, Object, Observed
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.progress import without_rates
from diloco_operator.decide.readmission import given_up_before
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.revocation import REVOKED, not_in_force
from diloco_operator.decide.same_place import with_same_places
from diloco_operator.decide.scale import start_time
from diloco_operator.decide.status import if_new
from diloco_operator.decide.stop_fields import StopFields, stop_fields
from diloco_operator.decide.stopping import PodsLeft, pods_left, scaled_to_nothing
from diloco_operator.decide.workloads import STATEFUL_SET, PoolWorkload, syncer_claim, syncer_deployment
from diloco_operator.names import PoolKey
from diloco_operator.options import OperatorOptions

MODEL_PATH = "model.safetensors"
"""The path of the exported model, relative to the root of the syncer's volume."""


@dataclass(frozen=True)
class Bare:
    """A job whose spec need not be readable."""

    job: Object
    before: JobStatus
    observed: Observed
    now: datetime
    options: OperatorOptions

    @property
    def stop_fields(self) -> StopFields:
        """The fields that stop it."""
        return stop_fields(self.job)

    @cached_property
    def clusters(self) -> Clusters:
        """Where its regions are."""
        finalizers = self.job["metadata"].get("finalizers") or ()
        return Clusters(
            regions=said_regions(self.job),
            seen=with_same_places(
                {name: seen for name, seen in self.observed.clusters.items() if seen.settled}, self.observed.children
            ),
            before={region.name: region for region in self.before.regions},
            unscalable={key.cluster for key in self.observed.refused if key.kind == STATEFUL_SET},
            finalized=FINALIZER in finalizers,
            now=self.now,
            options=self.options,
        )

    @property
    def left(self) -> PodsLeft:
        """Its pods."""
        after_seconds = self.lost_pod_policy.after_seconds
        return pods_left(self.observed.children, self.observed.looked, self.clusters, after_seconds)

    @property
    def lost_pod_policy(self) -> LostPodPolicy:
        """What becomes of pods on nodes that do not respond."""
        return policy_of(self.job)

    @cached_property
    def lost_pods(self) -> LostVerdict:
        """Its pods on such nodes, where it is to stop or has ended."""
        return lost_pods(
            LostScene(
                workloads=self.workloads,
                observed=self.observed,
                clusters=self.clusters,
                policy=self.lost_pod_policy,
                deployment=syncer_deployment(str(self.job["metadata"]["name"]), self.observed.children),
                syncer_stopped=self.annotation(SYNCER_STOPPED),
                stopping=True,
            )
        )

    @property
    def stopping_causes(self) -> list[Cause]:
        """What is wrong while it is to stop or has ended."""
        told = stopping_causes(self.observed, self.volume, self.clusters)
        return gravest_first([*self.lost_pods.causes, *told])

    @property
    def volume(self) -> Volume:
        """The claim that holds its training."""
        metadata = self.job["metadata"]
        name = str(metadata["name"])
        return Volume(
            name=names.syncer(name),
            remembered=self.before.syncer.claim_uid if self.before.syncer else "",
            trained=has_trained(self.before),
            claim=syncer_claim(name, self.observed.children),
            start_anew=self.annotation(START_ANEW),
        )

    def annotation(self, name: str) -> str:
        """An annotation of the job; empty if it has none of this name."""
        return str((self.job["metadata"].get("annotations") or {}).get(name, ""))

    @property
    def not_revoked(self) -> list[Cause]:
        """The cause for certificates that the user has revoked and that are still accepted; none if it is all done."""
        metadata = self.job["metadata"]
        secret = self.observed.children.get(ChildKey("Secret", names.syncer_secret(str(metadata["name"]))), {})
        pools = [one.pool for one in self.workloads]
        listed = revoked_list(secret.get("data") or {})
        return revocation_causes(not_in_force(self.annotation(REVOKED), pools, self.now, listed))

    @property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, as the status remembers them."""
        found = []
        for region in self.before.regions:
            for pool in region.pools:
                key = ChildKey(STATEFUL_SET, pool.stateful_set, self.clusters.regions.get(region.name, HOME))
                live = self.observed.children.get(key)
                found.append(PoolWorkload(PoolKey(region.name, pool.name), key, live, pool.desired, pool.minimum))
        return found


def over(before: JobStatus, end: End) -> Verdicts:
    """The verdicts about a job that ends now."""
    verdict = Verdict("False", end.reason, end.message)
    complete = end.phase == "Complete"
    return {
        "Ready": verdict,
        "Progressing": verdict,
        "Degraded": AS_EXPECTED,
        "Suspended": taken_over(before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": replace(verdict, status="True" if complete else "False"),
        "Failed": replace(verdict, status="False" if complete else "True"),
    }


def finished(bare: Bare) -> Plan:
    """Plan for a job that has ended: remove its pods, learners first, and keep the rest until the job is deleted."""
    before, options = bare.before, bare.options
    live_seconds = seconds_to_live(bare.stop_fields.ttl_seconds_after_finished, before.completion_time, bare.now)
    if live_seconds is not None and live_seconds <= 0:
        return Plan(again_in_seconds=options.resync_seconds, delete_job=True)
    left = bare.left
    again = options.poll_seconds if left.any else options.resync_seconds
    plan = Plan(
        again_in_seconds=again if live_seconds is None else min(again, live_seconds),
        scale=scaled_to_nothing(bare.observed.children, left, bare.clusters),
    )
    if (left.any or left.lost) and bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    verdicts: Verdicts = {
        "Ready": taken_over(before, "Ready", IN_PROGRESS),
        "Progressing": taken_over(before, "Progressing", IN_PROGRESS),
        "Degraded": degraded(bare.stopping_causes, before, bare.observed),
        "Suspended": taken_over(before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": taken_over(before, "Complete", IN_PROGRESS),
        "Failed": taken_over(before, "Failed", IN_PROGRESS),
    }
    return _said(bare, without_lost_pods(plan, bare.lost_pods), verdicts, running=False)


def blocked(bare: Bare, cause: Cause) -> Plan:
    """Plan for a job whose objects cannot be built; the conditions say why. It can still be stopped."""
    end = deadline_end(bare.stop_fields.active_deadline_seconds, bare.before.start_time, bare.now)
    if end is not None:
        completed = bare.now.replace(microsecond=0)
        return _said(bare, Plan(again_in_seconds=0.0), over(bare.before, end), running=False, completed=completed)
    if bare.stop_fields.suspend:
        return _suspends(bare, cause)
    suspended = taken_over(bare.before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED))
    others = [*blocking_causes(bare.observed), *bare.not_revoked]
    verdicts = _because_of(cause, others, suspended)
    return _said(bare, Plan(again_in_seconds=bare.options.resync_seconds), verdicts, running=True)


def _suspends(bare: Bare, cause: Cause) -> Plan:
    plan = Plan(
        again_in_seconds=bare.options.poll_seconds if bare.left.any else bare.options.resync_seconds,
        scale=scaled_to_nothing(bare.observed.children, bare.left, bare.clusters),
    )
    if bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    others = bare.stopping_causes + bare.not_revoked
    still = standing(bare.left, bare.before, bare.observed)
    plan = without_lost_pods(plan, bare.lost_pods)
    return _said(bare, plan, _because_of(cause, others, still), running=False)


def _because_of(cause: Cause, others: list[Cause], suspended: Verdict) -> Verdicts:
    """The verdicts about a job that cannot run: neither Ready nor Progressing, for one main cause."""
    because, causes = Verdict("False", cause.reason, cause.message), gravest_first([cause, *others])
    return {
        "Ready": because,
        "Progressing": because,
        "Degraded": Verdict("True", causes[0].reason, joined(causes)),
        "Suspended": suspended,
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }


def without_lost_pods(plan: Plan, lost: LostVerdict) -> Plan:
    """``plan`` with the deletions of lost pods, and in time for the next ones."""
    again = min(plan.again_in_seconds, lost.again_in_seconds)
    return replace(plan, delete_pods=lost.delete, again_in_seconds=again)


def was_suspended(before: JobStatus) -> bool:
    """Whether the job has stopped before."""
    return taken_over(before, "Suspended", IN_PROGRESS).status == "True"


def standing(left: PodsLeft, before: JobStatus, observed: Observed) -> Verdict:
    """Whether a job has stopped as it should. It becomes Suspended only after a list of its pods was empty."""
    said = was_suspended(before)
    gone = not (left.learners or left.syncers) and (said or not left.unseen)
    if gone and (said or not observed.look_failed):
        return Verdict("True", Reason.SUSPENDED, _not_awaited(left))
    if gone:
        return Verdict("False", Reason.SUSPENDING, "the operator cannot check at the moment whether pods are left")
    if left.unseen and not left.learners:
        text = "waits for a cluster that does not answer and may have learners"
    else:
        text = "learners' pods are stopping" if left.learners else "the syncer's pod is stopping"
    return Verdict("False", Reason.SUSPENDING, text)


def _not_awaited(left: PodsLeft) -> str:
    if not left.given_up:
        return ""
    return f"learners in {listed(left.given_up, 'and')} are stopped once that cluster answers: it does not at present"


def degraded(causes: list[Cause], before: JobStatus, observed: Observed) -> Verdict:
    """The Degraded verdict. While pods cannot be listed, the earlier verdict is kept."""
    earlier = taken_over(before, "Degraded", AS_EXPECTED)
    stands = observed.look_failed and earlier.status == "True" and earlier.reason in FOUND_BY_LOOKING
    if stands and (not causes or as_grave(earlier.reason, causes[0].reason)):
        return earlier
    return Verdict("True", causes[0].reason, joined(causes)) if causes else AS_EXPECTED


def exported(job: str) -> ExportedModel:
    """Where a complete job's model is."""
    return ExportedModel(persistent_volume_claim=names.syncer(job), path=MODEL_PATH)


def _said(bare: Bare, plan: Plan, verdicts: Verdicts, *, running: bool, completed: datetime | None = None) -> Plan:
    """``plan`` with the status; the known progress of the job stays."""
    before, generation = bare.before, int(bare.job["metadata"].get("generation") or 0)
    # A job without a status has no known pools to count.
    heard = Heard(None if bare.workloads else frozenset(), given_up=given_up_before(before))
    there = {one.pool: count for one in bare.workloads if (count := before.elsewhere.get(str(one.pool)))}
    pods = PodsSeen(elsewhere=there) if running else PodsSeen()
    counted = counts(bare.workloads, heard, bare.clusters, running=running, pods=pods)
    changed: dict[str, object] = {
        "learners": counted.learners,
        "regions": counted.regions,
        "progress": without_rates(before.progress),
        "observed_generation": generation,
        "phase": phase_of(before, verdicts, bare.now),
        "reason": reason_of(verdicts),
        "conditions": conditions(before, verdicts, generation, bare.now),
    }
    if completed is not None:
        changed["completion_time"] = completed
    elif bare.stop_fields.suspend and before.completion_time is None:
        changed["start_time"] = start_time(before, bare.now, suspended=True)
    return if_new(plan, before, before.model_copy(update=changed))
