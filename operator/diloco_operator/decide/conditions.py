"""The status of a job: verdicts to conditions, counts by region and pool, and the events of what changed.

Pure. The status is also the operator's only memory (when the job started, how it ended), so what is not known at the
moment is carried over from the previous status.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, get_args

from pydantic import ValidationError

from diloco.spec.status import (
    Condition,
    ConditionType,
    JobStatus,
    LearnerCounts,
    Phase,
    PoolStatus,
    RegionStatus,
)
from diloco.spec.words import shortlist
from diloco_operator.decide.avoided_nodes import begun
from diloco_operator.decide.causes.pools import Waiting
from diloco_operator.decide.clock import not_after
from diloco_operator.decide.clusters import Clusters
from diloco_operator.decide.guide import GUIDE, UNANNOUNCED
from diloco_operator.decide.observed import Object
from diloco_operator.decide.plan import JobEvent
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import LONGEST_MESSAGE, one_line, parsed_time
from diloco_operator.decide.workloads import PoolWorkload
from diloco_operator.names import PoolKey

CONDITION_TYPES: tuple[ConditionType, ...] = get_args(ConditionType)
_SINCE = ", since "
TRAINS_UNHEARD = timedelta(minutes=10)
"""How long a job's phase stays Training while its syncer's pod is not ready (ours)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one condition."""

    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str = ""
    since: datetime | None = None
    """When it was first found, where that counts; None: it does not."""


Verdicts = Mapping[ConditionType, Verdict]

AS_EXPECTED = Verdict("False", Reason.AS_EXPECTED)
IN_PROGRESS = Verdict("False", Reason.IN_PROGRESS)


def remembered(job: Object) -> JobStatus:
    """The status as it was last written. One that is not valid is ignored and written anew."""
    try:
        return JobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return JobStatus()


def condition(status: JobStatus, type_: ConditionType) -> Condition | None:
    """The condition of that type."""
    return next((one for one in status.conditions if one.type == type_), None)


def conditions(before: JobStatus, verdicts: Verdicts, generation: int, now: datetime) -> tuple[Condition, ...]:
    """One of each type. A condition's time changes only with its status (API conventions)."""
    made, time = [], now.replace(microsecond=0)
    for type_ in CONDITION_TYPES:
        verdict, earlier = verdicts[type_], condition(before, type_)
        same = earlier is not None and earlier.status == verdict.status
        made.append(
            Condition(
                type=type_,
                status=verdict.status,
                observed_generation=generation,
                last_transition_time=not_after(earlier.last_transition_time, now) if earlier and same else time,
                reason=verdict.reason,
                message=one_line(verdict.message, LONGEST_MESSAGE),
            )
        )
    return tuple(made)


def taken_over(before: JobStatus, type_: ConditionType, otherwise: Verdict) -> Verdict:
    """The verdict in the previous status, if there is one."""
    earlier = condition(before, type_)
    if earlier is None or earlier.reason not in set(Reason):
        return otherwise
    return Verdict(earlier.status, Reason(earlier.reason), earlier.message)


def dated(before: JobStatus, type_: ConditionType, verdict: Verdict, now: datetime) -> Verdict:
    """``verdict``, with the time at which the condition first said this, which its message then ends with.

    The message is where that time is kept: the condition's own time stays the same when only its reason changes.
    """
    earlier = condition(before, type_)
    text, _, time = earlier.message.rpartition(_SINCE) if earlier is not None else ("", "", "")
    first = not_after((parsed_time(time) if text == verdict.message else None) or now, now).replace(microsecond=0)
    return replace(verdict, message=f"{verdict.message}{_SINCE}{first:%Y-%m-%dT%H:%M:%SZ}", since=first)


def has_had_a_syncer(before: JobStatus) -> bool:
    """Whether a syncer was ready before: then the job trains or waits for the syncer, whatever its phase is."""
    ready = condition(before, "Ready")
    return before.phase == "Training" or (ready is not None and ready.reason == Reason.SYNCER_UNREACHABLE)


def _unheard_too_long(ready: Verdict, now: datetime) -> bool:
    """Whether the syncer's pod has not been ready for so long that the state of the training is not known any more."""
    unheard = (ready.status, ready.reason) == ("False", Reason.SYNCER_UNREACHABLE)
    return unheard and ready.since is not None and now - ready.since >= TRAINS_UNHEARD


def phase_of(before: JobStatus, verdicts: Verdicts, now: datetime) -> Phase:
    """One word for people. A job that has trained stays Training until it is suspended, ends or is unheard too long."""
    if verdicts["Complete"].status == "True":
        return "Complete"
    if verdicts["Failed"].status == "True":
        return "Failed"
    if verdicts["Suspended"].status == "True":
        return "Suspended"
    if verdicts["Ready"].reason == Reason.INVALID_SPEC:
        return "Invalid"
    if _unheard_too_long(verdicts["Ready"], now):
        return "Pending"
    return "Training" if verdicts["Ready"].status == "True" or before.phase == "Training" else "Pending"


def reason_of(verdicts: Verdicts) -> str:
    """The reason to show beside the phase: what is wrong, if anything."""
    for type_ in ("Complete", "Failed", "Degraded"):
        if verdicts[type_].status == "True":
            return verdicts[type_].reason
    return verdicts["Ready"].reason


@dataclass(frozen=True, slots=True)
class Counts:
    """Learners, by job, region and pool."""

    learners: LearnerCounts
    regions: tuple[RegionStatus, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """What the syncer reports about the learners."""

    training: frozenset[str] | None
    """Ids of those that train; None: not known."""
    left_out: frozenset[str] = frozenset()
    """Ids of those whose work is left out of merges."""
    quorum: int | None = None
    """The quorum in force, if it is not the manifest's."""


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """What the pods show, by pool."""

    waiting: Mapping[PoolKey, Waiting] = field(default_factory=dict)
    """Learners of elastic pools that have no node."""
    held: Mapping[PoolKey, int] = field(default_factory=dict)
    """Pods that are held back."""
    elsewhere: Mapping[PoolKey, int] = field(default_factory=dict)
    """Learners that run in the region's next pool."""


NOTHING_SEEN = PodsSeen()


def counts(
    workloads: Iterable[PoolWorkload],
    heard: Heard,
    clusters: Clusters,
    *,
    running: bool,
    pods: PodsSeen = NOTHING_SEEN,
) -> Counts:
    """The numbers of learners.

    Args:
        workloads: The pools.
        heard: What the syncer reports.
        clusters: Where they are.
        running: The job should run.
        pods: What the pods show.
    """
    by_region: dict[str, list[PoolStatus]] = {}
    for workload in workloads:
        region, pool = workload.pool
        desired = workload.desired if running else 0
        known = workload.live is not None or clusters.answers(workload.key.cluster)
        ids = {f"{region}/{pool}/{index}" for index in workload.indices} if running else set[str]()
        without, elsewhere = pods.waiting.get(workload.pool), min(desired, pods.elsewhere.get(workload.pool, 0))
        status = PoolStatus(
            name=pool,
            desired=desired,
            minimum=workload.minimum if running else None,
            waiting=None if without is None else without.learners,
            message=None if without is None else without.message,
            elsewhere=elsewhere or None,
            ready=workload.ready if known else clusters.last_ready(region, pool),
            training=len(ids & (heard.training or frozenset())),
            left_out=len(ids & heard.left_out) or None,
            given_up=tuple(sorted(workload.given_up)) or None,
            held=pods.held.get(workload.pool) or None,
            stateful_set=workload.key.name,
        )
        by_region.setdefault(region, []).append(status)
    regions = tuple(
        clusters.located(
            RegionStatus(
                name=region,
                desired=sum(pool.desired - (pool.elsewhere or 0) for pool in pools),
                training=sum(pool.training for pool in pools),
                pools=tuple(pools),
            )
        )
        for region, pools in by_region.items()
    )
    desired, trained = sum(region.desired for region in regions), sum(region.training for region in regions)
    ready = sum(pool.ready for region in regions for pool in region.pools)
    # The syncer does not report how many train, and an earlier number would look current.
    shown = "?" if running and heard.training is None else str(trained)
    summary = f"{shown}/{desired}"
    counted = LearnerCounts(
        desired=desired, ready=ready, training=trained, summary=summary, quorum=heard.quorum if running else None
    )
    return Counts(counted, regions)


def events(before: JobStatus, after: JobStatus, ordered: Collection[str] = ()) -> tuple[JobEvent, ...]:
    """One for every reason that is new to a condition, however many conditions share it; and of other changes.

    ``ordered``: ids of learners that a person lets back in.
    """
    told: dict[str, JobEvent] = {}
    for new in after.conditions:
        old, reason = condition(before, new.type), Reason(new.reason)
        if old is not None and (old.status, old.reason) == (new.status, new.reason):
            continue
        if new.type == "Degraded" and old is not None and old.status == "True" and new.status == "False":
            text = f"no longer degraded (was {old.reason})"
            told.setdefault(f"Degraded/{reason}", JobEvent("Normal", reason.value, text))
        elif reason not in UNANNOUNCED:
            text = new.message or GUIDE[reason].meaning
            told.setdefault(reason, JobEvent(GUIDE[reason].severity, reason.value, text))
    others = (*_avoidances(before, after), *_returns(before, after, ordered), *_fallbacks(before, after))
    return (*told.values(), *others)


def event(reason: Reason, text: str) -> JobEvent:
    """An event with this reason."""
    return JobEvent(GUIDE[reason].severity, reason.value, one_line(text, LONGEST_MESSAGE))


def _avoidances(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """What is said of nodes that are avoided from now on."""
    if text := begun(before.avoided_nodes, after.avoided_nodes):
        yield event(Reason.NODE_AVOIDED, text)


def _fallbacks(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """What is said of pools whose learners run in the next one, or do so no longer."""
    old, new = before.elsewhere, after.elsewhere
    asked, asks = _to_run(before), _to_run(after)
    for pool in sorted({*old, *new}):
        was, are = old.get(pool, 0), new.get(pool, 0)
        if are > was:
            yield event(Reason.FALLBACK_USED, f"{are} learners of {pool} run in the next pool: they find no node")
        elif are < was and after.learners.desired:
            fewer = asks.get(pool, 0) < asked.get(pool, 0)
            why = f"fewer learners of {pool} are to run" if fewer else f"learners of {pool} have nodes"
            yield event(Reason.FALLBACK_LEFT, f"{why}; {are} still run in the next pool")


def _to_run(status: JobStatus) -> dict[str, int]:
    """The learners of each pool that may run, by ``REGION/POOL``."""
    pools = [(f"{region.name}/{pool.name}", pool) for region in status.regions for pool in region.pools]
    return {name: pool.desired - len(pool.given_up or ()) for name, pool in pools}


def _returns(before: JobStatus, after: JobStatus, ordered: Collection[str]) -> Iterator[JobEvent]:
    """What is said of learners that are no longer given up, though their pools still belong to the job.

    One that nobody lets back in is given up no longer if its pool is smaller, which needs no word, or if the syncer
    does not know of it any more.
    """
    now = {(region.name, pool.name): pool for region in after.regions for pool in region.pools}
    back = [
        f"{region.name}/{pool.name}/{index}"
        for region in before.regions
        for pool in region.pools
        for index in pool.given_up or ()
        if (same := now.get((region.name, pool.name))) is not None and index not in (same.given_up or ())
    ]
    obeyed = [one for one in back if one in ordered]
    if obeyed:
        yield event(Reason.LEARNER_READMITTED, f"{shortlist(obeyed)} may join again")
    forgotten = [one for one in back if one not in ordered]
    if forgotten and _starts(before) != _starts(after):
        text = "the syncer was started again, from a checkpoint that is older than the giving up"
        yield event(Reason.GIVING_UP_LOST, f"{shortlist(forgotten)} may join again: {text}")


def _starts(status: JobStatus) -> int:
    return 0 if status.syncer is None else status.syncer.epoch
