"""What is wrong by the syncer's own account: checkpoints, tape, links, learners that it gave up or that stand still.

Pure. It must not know pods.
"""

from collections.abc import Iterable

from diloco_operator.decide.causes.pools import Cause
from diloco_operator.decide.observed import LearnerReport, LinksReport, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import one_line, shortlist

TRAINING_STATES = frozenset({"Training"})
PRESENT_STATES = frozenset({"Loading", "Training", "Stalled"})
_LONGEST_LINKS = 600
"""Characters of what is told about links: the reason, and what would do."""
_MISFITS = {
    reason.value: reason
    for reason in (
        Reason.LINK_TOO_THIN,
        Reason.MERGES_TOO_SLOW,
        Reason.ROUND_TOO_LONG,
        Reason.STALENESS_BOUND_TOO_LOW,
        Reason.OVERLAP_TOO_SHORT,
    )
}
"""By the kind that the syncer tells."""


def reported_causes(view: SyncerStatusView, wanted: frozenset[str]) -> list[Cause]:
    """``wanted``: ids of the learners that the manifest asks for; others are of no interest any more."""
    causes = []
    if view.checkpoint.problem:
        causes.append(
            Cause(Reason.CHECKPOINT_FAILING, f"no checkpoint can be written: {one_line(view.checkpoint.problem)}")
        )
    if view.tape_problem:
        causes.append(Cause(Reason.TAPE_FAILING, f"the tape is incomplete: {one_line(view.tape_problem)}"))
    reports = [report for report in view.learners if report.id in wanted]
    for state, reason, words in (
        ("GivenUp", Reason.LEARNERS_GIVEN_UP, "given up after too many restarts"),
        ("Stalled", Reason.LEARNERS_STALLED, "connected but making no steps"),
    ):
        found = sorted(report.id for report in reports if report.state == state)
        if found:
            causes.append(Cause(reason, f"{shortlist(found)} {words}"))
    return causes + _links_causes(view.links)


def _links_causes(links: LinksReport | None) -> list[Cause]:
    """What does not fit together. A kind that is not known here is let pass: it says nothing of what to do."""
    reason = None if links is None else _MISFITS.get(links.kind)
    if links is None or reason is None:
        return []
    would_do = f"; would do: {'; or '.join(links.remedies)}" if links.remedies else ""
    return [Cause(reason, one_line(f"{links.reason}{would_do}", _LONGEST_LINKS))]


def present(view: SyncerStatusView) -> frozenset[str]:
    """Learners with a session."""
    return _in(view.learners, PRESENT_STATES)


def training(view: SyncerStatusView) -> frozenset[str]:
    """Learners that make steps."""
    return _in(view.learners, TRAINING_STATES)


def given_up(view: SyncerStatusView) -> frozenset[str]:
    """Learners that are not let in again."""
    return _in(view.learners, frozenset({"GivenUp"}))


def _in(reports: Iterable[LearnerReport], states: frozenset[str]) -> frozenset[str]:
    return frozenset(report.id for report in reports if report.state in states)
