"""Which learners are given up, and which of them a person lets back in, by an annotation of the job. Pure.

The syncer decides that a learner is given up, and only the syncer can take it back. So the operator writes the order
beside the manifest that the syncer reads (`diloco.spec.names.learner_orders`). Once the syncer no longer reports the
learner as given up, its pod may have a node, and its name is removed from the annotation, so that it holds once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from diloco.spec.names.learner_orders import READMITTED_FILE, LearnerOrder, orders_in, orders_text
from diloco.spec.status.engine import LearnerState
from diloco.spec.status.job import JobStatus
from diloco.spec.words import shortlist
from diloco_operator import names
from diloco_operator.decide.observed import ChildKey, Object, Observed, SyncerStatusView

READMIT: Final = "diloco.dev/readmit"
"""The annotation: ids of learners (``region/pool/index``), separated by commas."""
_WHERE: Final = f"metadata.annotations[{READMIT}]"
_MOST_NAMED: Final = 8
_LONGEST_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class Readmissions:
    """What becomes of the annotation."""

    file: str = ""
    """What the syncer is told."""
    left: str | None = None
    """What is left of the annotation; None: it stays as it is."""
    problem: str = ""
    """What is wrong with it; empty: nothing. The names that are in order count in any case."""
    needless: str = ""
    """What to say of learners that it names and that are not given up; empty: there are none. They are not left."""


def given_up(view: SyncerStatusView) -> frozenset[str]:
    """Learners that may not rejoin, as the syncer reports."""
    return frozenset(report.id for report in view.learners if report.state == LearnerState.GIVEN_UP)


def given_up_before(status: JobStatus) -> frozenset[str]:
    """The learners that were given up when the status was written."""
    return frozenset(
        f"{region.name}/{pool.name}/{index}"
        for region in status.regions
        for pool in region.pools
        for index in pool.given_up or ()
    )


def given_up_now(observed: Observed, before: JobStatus) -> frozenset[str]:
    """The learners that are given up, as the syncer reports or last reported."""
    view = observed.syncer
    return given_up(view) if isinstance(view, SyncerStatusView) else given_up_before(before)


def named_in(annotation: str) -> tuple[str, ...]:
    """The ids that an annotation names, each once."""
    return tuple(dict.fromkeys(filter(None, (one.strip() for one in annotation.split(",")))))


def readmitted(
    annotation: str, learners: Collection[str], observed: Observed, before: JobStatus, job: str
) -> Readmissions:
    """What the annotation asks for.

    Args:
        annotation: The annotation.
        learners: The ids that the job may have.
        observed: What was observed.
        before: The status as it was last written.
        job: The job's name.
    """
    named = named_in(annotation)
    if not named:
        return Readmissions()
    unknown = [one for one in named if one not in learners]
    problem = ""
    if unknown:
        told = shortlist([repr(one[:_LONGEST_NAMED]) for one in unknown], _MOST_NAMED)
        which = "is no learner" if len(unknown) == 1 else "are no learners"
        problem = f"{_WHERE}: {told} {which} of this job; use REGION/POOL/INDEX"
    view, orders = observed.syncer, _told_before(observed.children, job, named)
    if not isinstance(view, SyncerStatusView):
        return Readmissions(orders_text(orders), None, problem)
    out = {one.id: one.incarnation for one in view.learners if one.state == LearnerState.GIVEN_UP}
    obeyed = given_up_before(before).union(one.learner for one in orders)
    # An order that was obeyed has no effect. It stays while the annotation does, as the mark of having been given.
    orders = [one for one in orders if one.learner not in out]
    orders += [LearnerOrder(one, view.epoch, out[one]) for one in named if one in out]
    kept = [one for one in named if one in out or one in unknown]
    left = None if len(kept) == len(named) else ",".join(kept)
    needless = [one for one in named if one not in obeyed and one not in kept]
    return Readmissions(orders_text(orders), left, problem, _needless(needless, out))


def not_ordered(annotation: str, children: Mapping[ChildKey, Object], job: str) -> str:
    """What the annotation asks for in vain, for a job whose objects cannot be built; empty: nothing."""
    named = named_in(annotation)
    told = {one.learner for one in _told_before(children, job, named)}
    still = [repr(one[:_LONGEST_NAMED]) for one in named if one not in told]
    if not still:
        return ""
    return f"{_WHERE}: {shortlist(still, _MOST_NAMED)} cannot be let back in while the manifest is refused; correct it"


def _needless(named: list[str], out: Collection[str]) -> str:
    if not named:
        return ""
    who = f"{shortlist(sorted(out), _MOST_NAMED)} {_are(out)}" if out else "no learner is"
    return f"{_WHERE}: {shortlist(named, _MOST_NAMED)} {_are(named)} not given up; {who}"


def _are(learners: Collection[str]) -> str:
    return "is" if len(learners) == 1 else "are"


def orders_told(children: Mapping[ChildKey, Object], job: str, file: str) -> tuple[LearnerOrder, ...]:
    """The orders that the syncer has already in one of its files."""
    live = children.get(ChildKey("ConfigMap", names.config_map(job))) or {}
    return orders_in(str((live.get("data") or {}).get(file) or ""))


def _told_before(children: Mapping[ChildKey, Object], job: str, named: Collection[str]) -> list[LearnerOrder]:
    """The orders about the learners named that the syncer has already."""
    return [one for one in orders_told(children, job, READMITTED_FILE) if one.learner in named]
