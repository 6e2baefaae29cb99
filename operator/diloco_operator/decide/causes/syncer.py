"""What the syncer reports as wrong: checkpoints, tape, links, and learners that are given up or stalled. Pure."""

from collections.abc import Mapping

from diloco.spec.status.engine import OVER, PRESENT, LearnerState, too_fast
from diloco.spec.sync import SyncSpec
from diloco.spec.words import shortlist
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.learners.readmission import READMIT
from diloco_operator.decide.observed import LearnerReport, LinksReport, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line

_LONGEST_LINKS = 600
"""Most characters of a message about links: the reason and the remedies."""
_MOST_LEFT_OUT = 3
"""Most reasons for learners being left out or in quarantine."""
CUT_OFF_SECONDS = 15.0
"""A learner without a session that was heard since then may be on its way back (ours)."""
OF_STORAGE = frozenset({Reason.CHECKPOINT_FAILING, Reason.TAPE_FAILING, Reason.BACKUP_FAILING})
"""Reasons for problems that a syncer reports, and that last whether or not it runs."""
REPORTED = OF_STORAGE | {
    Reason.LEARNERS_GIVEN_UP,
    Reason.LEARNERS_DIVERGING,
    Reason.QUORUM_LOWERED,
    Reason.LEARNERS_NOT_ANSWERING,
    Reason.LEARNERS_TOO_FAST,
    Reason.LEARNERS_DISAGREEING,
    Reason.LEARNERS_STALLED,
    Reason.LEARNERS_MISSING,
    Reason.SCHEDULE_MISFIT,
}
"""Reasons that only the syncer's report shows: until it answers again, whether they apply is not known."""
NO_MISFITS = frozenset({"Fits", "StepTimeUnknown"})
"""Kinds that the syncer reports while nothing is known to be wrong with settings and links."""


def storage_causes(view: SyncerStatusView) -> list[Cause]:
    """What the syncer cannot write, to its volume or to where its backups go."""
    problems = {
        Reason.CHECKPOINT_FAILING: ("the syncer cannot write checkpoints", view.checkpoint.problem),
        Reason.TAPE_FAILING: ("the tape is incomplete", view.tape_problem),
        Reason.BACKUP_FAILING: ("the syncer cannot upload backups", "" if view.backup is None else view.backup.problem),
    }
    return [Cause(reason, f"{what}: {one_line(why)}") for reason, (what, why) in problems.items() if why]


def reported_causes(view: SyncerStatusView, wanted: frozenset[str], sync: SyncSpec) -> list[Cause]:
    """The causes that the syncer reports.

    Args:
        view: Its status.
        wanted: Ids of the learners that the manifest asks for; others no longer matter.
        sync: Settings of the manifest.
    """
    causes = storage_causes(view)
    reports = [report for report in view.learners if report.id in wanted]
    out = sorted(report.id for report in reports if report.state == LearnerState.GIVEN_UP)
    if out:
        text = f"{shortlist(out)} given up after too many restarts"
        remedy = f"annotate the job with {READMIT}={out[0]} to let it back in"
        causes.append(Cause(Reason.LEARNERS_GIVEN_UP, f"{text}; {remedy}"))
    stalled = sorted(report.id for report in reports if report.state == LearnerState.STALLED)
    if stalled:
        causes.append(Cause(Reason.LEARNERS_STALLED, f"{shortlist(stalled)} connected but making no steps"))
    if fast := too_fast(reports):
        text = "reporting far more steps than count beside the others; the excess is ignored"
        causes.append(Cause(Reason.LEARNERS_TOO_FAST, f"{shortlist(fast)} {text}"))
    against = sorted(report.id for report in reports if report.against)
    if against:
        text = "sending outer gradients that point against the others', merge after merge"
        causes.append(Cause(Reason.LEARNERS_DISAGREEING, f"{shortlist(against)} {text}"))
    startup = sync.startup_seconds
    loading = sorted(report.id for report in reports if (report.loading_seconds or 0.0) >= startup)
    if loading:
        text = f"{shortlist(loading)} loading the model for more than sync.startupSeconds ({startup} s)"
        causes.append(Cause(Reason.LEARNERS_STALLED, text))
    quarantined = {one.id: one.diverged_reason for one in reports if one.state == LearnerState.QUARANTINED}
    causes += _by_reason(Reason.LEARNERS_DIVERGING, "in quarantine: ", quarantined)
    left = left_out(view)
    causes += _left_out_causes([report for report in reports if report.id in left])
    unanswering = {one.id: one.unanswered_now for one in reports if one.unanswered_now}
    causes += _by_reason(Reason.LEARNERS_NOT_ANSWERING, "", unanswering)
    if lowered_quorum(view, sync.quorum) is not None:
        text = f"the quorum is {view.quorum}, below spec.sync.quorum ({sync.quorum})"
        causes.append(Cause(Reason.QUORUM_LOWERED, f"{text}: only {view.quorum} learner(s) are left"))
    return causes + _links_causes(view.links)


def _left_out_causes(reports: list[LearnerReport]) -> list[Cause]:
    told = {report.id: report.left_out_now for report in reports}
    return _by_reason(Reason.LEARNERS_DIVERGING, "merges leave out ", told)


def _by_reason(reason: Reason, before: str, told: Mapping[str, str]) -> list[Cause]:
    """One cause for each text, with all learners of which the syncer says it; ``before`` begins the messages."""
    by_reason: dict[str, list[str]] = {}
    for learner in sorted(told):
        by_reason.setdefault(one_line(told[learner]), []).append(learner)
    without = [f"{shortlist(found)}: {text}" for text, found in list(by_reason.items())[:_MOST_LEFT_OUT]]
    more = sum(len(found) for found in list(by_reason.values())[_MOST_LEFT_OUT:])
    if more:
        without.append(f"{more} more learner(s)")
    return [Cause(reason, f"{before}{who}") for who in without]


def _links_causes(links: LinksReport | None) -> list[Cause]:
    """Settings and links that do not fit together."""
    if links is None or links.kind in NO_MISFITS:
        return []
    would_do = f"; remedies: {'; or '.join(links.remedies)}" if links.remedies else ""
    return [Cause(Reason.SCHEDULE_MISFIT, one_line(f"{links.reason}{would_do}", _LONGEST_LINKS))]


def present(view: SyncerStatusView) -> frozenset[str]:
    """Learners with a session."""
    return _in(view, *PRESENT)


def cut_off(view: SyncerStatusView) -> dict[str, float]:
    """Learners that had a session and have been silent for a while: for how many seconds."""
    silent = {one.id: one.last_heard_seconds or 0.0 for one in view.learners if one.state == LearnerState.ABSENT}
    return {} if view.phase in OVER else {one: seconds for one, seconds in silent.items() if seconds >= CUT_OFF_SECONDS}


def training(view: SyncerStatusView) -> frozenset[str]:
    """Learners that make steps."""
    return _in(view, LearnerState.TRAINING)


def left_out(view: SyncerStatusView) -> frozenset[str]:
    """Learners whose work merges repeatedly leave out, without those that are in quarantine or given up."""
    left = frozenset(report.id for report in view.learners if report.left_out_now)
    return left - _in(view, LearnerState.GIVEN_UP, LearnerState.QUARANTINED)


def lowered_quorum(view: SyncerStatusView, quorum: int) -> int | None:
    """The quorum in force, where it is below ``sync.quorum``."""
    return view.quorum if 0 < view.quorum < quorum else None


def _in(view: SyncerStatusView, *states: LearnerState) -> frozenset[str]:
    return frozenset(report.id for report in view.learners if report.state in states)
