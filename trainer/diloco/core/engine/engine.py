"""The engine: decides which learners' fragments are merged when. It gets events and returns actions.

It has no clock (``now`` is an argument), no socket, no thread and no tensor, so the syncer drives it in real time, the
simulator in virtual time, and replay from a tape, with the same decisions. Those about learners are in `members`,
those about fragments in `rounds`; this module passes events to them.
"""

from dataclasses import dataclass
from typing import Any, Self, assert_never

from diloco.core.engine import events, snapshot
from diloco.core.engine.actions import Action, Checkpoint
from diloco.core.engine.events import Event
from diloco.core.engine.members import beginning, divergence, evaluation, leases, membership, pools
from diloco.core.engine.options import EngineOptions
from diloco.core.engine.records import ROUND_TIMER
from diloco.core.engine.rounds import quorum, rounds
from diloco.core.engine.view import view
from diloco.spec.status.engine import EngineStatus, RecoveriesStatus

__all__ = ["Engine", "EngineOptions", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    merged_tokens: float
    budget_tokens: int
    merges: int


class Engine:
    """State machine of one job's synchronization."""

    def __init__(self, options: EngineOptions, epoch: int, saved: dict[str, Any] | None = None) -> None:
        """Start a new job, or resume from what `snapshot` returned in an earlier epoch.

        Raises:
            SnapshotError: ``saved`` is not a snapshot of this job.
        """
        self._state = snapshot.fresh(options, epoch) if saved is None else snapshot.restore(options, epoch, saved)

    def step(self, event: Event, now: float) -> list[Action]:
        """Process one event at ``now`` (seconds, never going back); returns the actions to carry out."""
        state = self._state
        if state.finished and not isinstance(event, events.LearnerJoined | events.LearnerLeft | events.SnapshotAsked):
            return []
        actions = self._handle(event, now)
        if state.gone or state.fewer_left:
            actions += rounds.go_on(state, now)
        if not state.confirmed:
            actions += beginning.advance(state, now)
        actions += evaluation.advance(state, now)
        # Only a learner's step makes it ready to be asked.
        return actions + rounds.launch_due(
            state, event.learner if isinstance(event, events.StepReported) else None, now
        )

    @property
    def finished(self) -> bool:
        """Whether the job is over: no further event changes the model."""
        return self._state.finished

    @property
    def versions(self) -> tuple[int, ...]:
        """Current version of every fragment."""
        return tuple(self._state.versions)

    @property
    def fragment_tokens(self) -> tuple[int, ...]:
        """Tokens merged into every fragment."""
        return tuple(self._state.fragment_tokens)

    @property
    def progress(self) -> Progress:
        """How far the job is; cheaper than ``view``, which reads every learner."""
        state = self._state
        return Progress(state.merged_tokens, state.budget_tokens, state.merges)

    @property
    def recoveries(self) -> RecoveriesStatus:
        """The learners' recoveries so far."""
        return self._state.recoveries

    def snapshot(self, now: float) -> dict[str, Any]:
        """The state as plain JSON, for a checkpoint."""
        return snapshot.take(self._state, now)

    def image(self) -> dict[str, Any]:
        """The whole state as plain JSON, for `from_image`: unlike a snapshot with sessions and rounds under way."""
        return snapshot.take_whole(self._state)

    @classmethod
    def from_image(cls, options: EngineOptions, epoch: int, whole: dict[str, Any]) -> Self:
        """An engine that goes on exactly as the one whose `image` is ``whole``, of the same options and epoch.

        Raises:
            SnapshotError: ``whole`` is not an image of an engine of this job.
        """
        engine = cls(options, epoch)
        engine._state = snapshot.restore_whole(options, epoch, whole)
        return engine

    def view(self, now: float) -> EngineStatus:
        """The state for display."""
        return view(self._state, now)

    def _handle(self, event: Event, now: float) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - a table of events
        state = self._state
        match event:
            case events.StepReported():
                return membership.stepped(state, event, now)
            case events.FragmentApplied():
                return rounds.applied(state, event, now)
            case events.FragmentArrived():
                return rounds.arrived(state, event, now)
            case events.LearnerAlive():
                return leases.alive(state, event, now)
            case events.FragmentLate():
                return rounds.late(state, event, now)
            case events.FragmentDeclined():
                return rounds.declined(state, event, now)
            case events.Merged():
                return rounds.merged(state, event, now)
            case events.LearnerJoined():
                return membership.join(state, event, now)
            case events.LearnerReady():
                return membership.ready(state, event, now)
            case events.LearnerLeft():
                return membership.left(state, event, now)
            case events.TimerFired():
                return self._timer(event.name, now)
            case events.SnapshotAsked():
                return [Checkpoint(event.reason)]
            case events.LearnersPlanned():
                actions = pools.planned(state, event, now) + leases.put_out_removed(state, now)
                return [*actions, *membership.plan_changed(state, now), *rounds.learners_left(state, now)]
            case events.BudgetChanged():
                return evaluation.budget_changed(state, event)
            case events.LearnerReadmitted():
                return membership.readmit(state, event)
            case events.LearnerFailed():
                return membership.failed(state, event, now)
            case events.Evaluated():
                return evaluation.evaluated(state, event, now)
            case _:
                assert_never(event)

    def _timer(self, name: str, now: float) -> list[Action]:
        if name == leases.LEASE_TIMER:
            return leases.check_leases(self._state, now) + rounds.launch_for_those_that_wait(self._state, now)
        if name == divergence.QUARANTINE_TIMER:
            return divergence.timer(self._state, now)
        if name.startswith(ROUND_TIMER):
            return quorum.timer(self._state, int(name.removeprefix(ROUND_TIMER)), now)
        return evaluation.timer(self._state, name, now)
