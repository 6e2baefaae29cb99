"""The conditions of a job from verdicts, its phase, and the events of what changed.

Pure. The status is also the operator's only memory (when the job started, how it ended), so what is not known at the
moment is carried over from the previous status.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, get_args

from pydantic import ValidationError

from diloco.spec.status.job import Condition, ConditionType, JobStatus, Phase
from diloco.spec.words import shortlist
from diloco_operator.decide.guide import GUIDE, UNANNOUNCED
from diloco_operator.decide.observed import Object
from diloco_operator.decide.plan import JobEvent
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import LONGEST_MESSAGE, one_line, parsed_time

CONDITION_TYPES: tuple[ConditionType, ...] = get_args(ConditionType)
_RESTING: tuple[Literal["Complete", "Failed", "Suspended"], ...] = ("Complete", "Failed", "Suspended")
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


def remembered(job: Object) -> JobStatus:
    """The status as it was last written. One that is not valid is ignored and written anew."""
    try:
        return JobStatus.model_validate(job.get("status") or {})
    except ValidationError:
        return JobStatus()


def condition(status: JobStatus, type_: str) -> Condition | None:
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
                last_transition_time=earlier.last_transition_time if earlier and same else time,
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
    first = ((parsed_time(time) if text == verdict.message else None) or now).replace(microsecond=0)
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
    for resting in _RESTING:
        if verdicts[resting].status == "True":
            return resting
    if verdicts["Ready"].reason == Reason.INVALID_SPEC:
        return "Invalid"
    if verdicts["Suspended"].reason == Reason.SUSPENDING:
        return "Suspending"
    if verdicts["Ready"].reason == Reason.QUEUED:
        return "Pending"
    if _unheard_too_long(verdicts["Ready"], now):
        return "Pending"
    return "Training" if verdicts["Ready"].status == "True" or before.phase == "Training" else "Pending"


def reason_of(verdicts: Verdicts) -> str:
    """The reason to show beside the phase: what is wrong, if anything."""
    for type_ in ("Complete", "Failed", "Degraded"):
        if verdicts[type_].status == "True":
            return verdicts[type_].reason
    return verdicts["Ready"].reason


def events(
    before: JobStatus, after: JobStatus, ordered: Collection[str] = (), given_up: str = ""
) -> tuple[JobEvent, ...]:
    """One for every reason that is new to a condition, however many conditions share it; and of other changes.

    ``ordered``: ids of learners that a person lets back in. ``given_up``: the place in other clusters whose objects a
    person leaves there.
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
    others = (
        *(*_returns(before, after, ordered), *_fallbacks(before, after), *_unplaced(before, after)),
        *(*_scalings(before, after), *_given_up(before, after, given_up)),
    )
    return (*told.values(), *others)


def event(reason: Reason, text: str) -> JobEvent:
    """An event with this reason."""
    return JobEvent(GUIDE[reason].severity, reason.value, one_line(text, LONGEST_MESSAGE))


def _fallbacks(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """What is said of pools of which more or fewer learners run in the next one."""
    for pool in sorted({*before.fallback_learners, *after.fallback_learners}):
        was, are = before.fallback_learners.get(pool, 0), after.fallback_learners.get(pool, 0)
        if was != are and (are or after.learners.desired):
            yield event(Reason.FALLBACK_CHANGED, f"{are} learners of {pool} run in the next pool (before: {was})")


def _unplaced(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """What is said of learners that keep no node, as they found only some."""
    new = [(who, one.until) for who, one in after.unplaced if one.until and (who, one) not in before.unplaced]
    found = [f"{who} until {until:%H:%M:%SZ}" for who, until in new]
    if found:
        yield event(Reason.PLACED_IN_PART, f"held back, as only some of its pods found a node: {shortlist(found)}")


def _scalings(before: JobStatus, after: JobStatus) -> Iterator[JobEvent]:
    """What is said of pools of which the manifest asks for more or fewer learners than before, while the job runs."""
    if before.fallback_learners != after.fallback_learners:
        return  # the next pool of a region has as many more
    was = {(region.name, pool.name): pool.desired for region in before.regions for pool in region.pools}
    changed = [
        f"{region.name}/{pool.name} from {old} to {pool.desired}"
        for region in after.regions
        for pool in region.pools
        if (old := was.get((region.name, pool.name), 0)) and pool.desired not in (0, old)
    ]
    if changed:
        yield event(Reason.POOL_SCALED, f"learners of {shortlist(changed)}")


def _given_up(before: JobStatus, after: JobStatus, place: str) -> Iterator[JobEvent]:
    """What is said of a place in which the job's objects are left."""
    if place in _places(before) - _places(after):
        text = f"what the job has in {place} is left there, perhaps with learners that run: it is given up"
        yield event(Reason.CHILDREN_LEFT, text)


def _places(status: JobStatus) -> set[str | None]:
    return {one.place for one in status.regions} | {one.place for one in status.former_clusters}


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
        yield event(Reason.LEARNER_READMITTED, f"{shortlist(forgotten)} may join again: {text}")


def _starts(status: JobStatus) -> int:
    return 0 if status.syncer is None else status.syncer.epoch
