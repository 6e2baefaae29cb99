"""Which learners are given up, and which of them a person lets back in, by an annotation of the job. Pure.

The syncer decides that a learner is given up, and only the syncer can take it back. So the operator writes the order
beside the manifest that the syncer reads (`diloco.spec.learner_orders`). Once the syncer no longer reports the learner
as given up, its pod may have a node, and its name is removed from the annotation, so that it holds once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from diloco.spec.learner_orders import READMITTED_FILE, LearnerOrder, orders_in, orders_text
from diloco.spec.status import JobStatus
from diloco.spec.syncer_status import LearnerState
from diloco.spec.words import shortlist
from diloco_operator import names
from diloco_operator.decide.observed import ChildKey, Object, Observed, SyncerStatusView

READMIT: Final = "diloco.dev/readmit"
"""The annotation: ids of learners (``region/pool/index``), separated by commas."""
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Readmissions:
    """What becomes of the annotation."""

    file: str = ""
    """What the syncer is told."""
    left: str | None = None
    """What is left of the annotation; None: it stays as it is."""
    problem: str = ""
    """What is wrong with it; empty: nothing. The names that are in order count in any case."""


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


def readmitted(annotation: str, learners: Collection[str], observed: Observed, job: str) -> Readmissions:
    """What the annotation asks for; ``learners``: the ids that the job may have."""
    named = tuple(dict.fromkeys(filter(None, (one.strip() for one in annotation.split(",")))))
    if not named:
        return Readmissions()
    unknown = [one for one in named if one not in learners]
    problem = ""
    if unknown:
        told = shortlist([repr(one[:100]) for one in unknown], _MOST_NAMED)
        which = "is no learner" if len(unknown) == 1 else "are no learners"
        problem = f"metadata.annotations[{READMIT}]: {told} {which} of this job; use REGION/POOL/INDEX"
    view = observed.syncer
    if not isinstance(view, SyncerStatusView):
        return Readmissions(_told_before(observed.children, job, named), None, problem)
    out = {one.id: one.incarnation for one in view.learners if one.state == LearnerState.GIVEN_UP}
    orders = [LearnerOrder(one, view.epoch, out[one]) for one in named if one in out]
    kept = [one for one in named if one in out or one in unknown]
    return Readmissions(orders_text(orders), None if len(kept) == len(named) else ",".join(kept), problem)


def _told_before(children: Mapping[ChildKey, Object], job: str, named: Collection[str]) -> str:
    """The orders that the syncer has already, while it does not report."""
    live = children.get(ChildKey("ConfigMap", names.config_map(job))) or {}
    text = (live.get("data") or {}).get(READMITTED_FILE)
    return orders_text(one for one in orders_in(str(text or "")) if one.learner in named)
