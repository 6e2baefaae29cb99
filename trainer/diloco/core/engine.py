"""The engine: decides which learners' fragments are merged when. It gets events and returns actions.

It has no clock (``now`` is an argument), no socket, no thread and no tensor, so the syncer drives it in real time, the
simulator in virtual time, and replay from a tape, with the same decisions. The decisions are in modules of their own:
`membership` (who is in), `leases` (who is lost, stalled or stuck), `healing` and `divergence` (who must start over, or
may not take part), `pools` (which learners are planned), `pace` (when a round is due), `rounds` (one fragment
under way), `requests` and `request_leads` (who is asked when), `closing`, `waiting` and `grace` (how long a round
waits), `returns` and `overlap` (what is in flight), `merge_weights`, `completion` (evaluations and the end); this
module passes events to them.
"""

from dataclasses import dataclass
from typing import Any, Self, assert_never

from diloco.core import accounting, closing, completion, healing, image, leases, membership, pools, rounds, snapshot
from diloco.core.actions import Action, Checkpoint, Fence, Note, Refusal, Refuse
from diloco.core.events import (
    Evaluated,
    Event,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    FragmentLate,
    LearnerAlive,
    LearnerFailed,
    LearnerJoined,
    LearnerLeft,
    LearnerReadmitted,
    LearnerReady,
    LearnersPlanned,
    Merged,
    SnapshotAsked,
    StepReported,
    TimerFired,
)
from diloco.core.options import EngineOptions
from diloco.core.recovery import Recoveries
from diloco.core.view import EngineView, view

__all__ = ["Engine", "EngineOptions", "EngineView", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    merged_tokens: float
    budget_tokens: int
    merges: int


class Engine:
    """State machine of one job's synchronization."""

    def __init__(self, options: EngineOptions, epoch: int, saved: dict[str, Any] | None = None) -> None:
        """Start a new job, or resume from a snapshot.

        Args:
            options: The job's options.
            epoch: Number of this start of the syncer; it makes incarnations unique.
            saved: What `snapshot` returned in an earlier epoch.

        Raises:
            SnapshotError: ``saved`` is not a snapshot of this job.
        """
        self._state = snapshot.fresh(options, epoch) if saved is None else snapshot.restore(options, epoch, saved)

    def step(self, event: Event, now: float) -> list[Action]:
        """Process one event at ``now`` (seconds, never going back); returns the actions to carry out."""
        state = self._state
        if state.finished and not isinstance(event, LearnerJoined | LearnerLeft | SnapshotAsked):
            return []
        was_finished = state.finished
        actions = self._handle(event, now)
        for learner, diverged in _out(actions):
            actions += rounds.lost(state, learner, now, diverged=diverged)
        if isinstance(event, LearnersPlanned | LearnerFailed) or _fewer_left(actions):
            actions += rounds.learners_left(state, now)
        actions += completion.advance(state, now)
        actions += rounds.launch_due(state, now)
        if state.finished and not was_finished:
            accounting.finished(state, now)
        return actions

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
        return Progress(state.merged_tokens, state.options.budget_tokens, state.merges)

    @property
    def recoveries(self) -> Recoveries:
        """The learners' recoveries so far; not to be changed."""
        return self._state.recoveries

    def snapshot(self, now: float) -> dict[str, Any]:
        """The state as plain JSON, for a checkpoint."""
        return snapshot.take(self._state, now)

    def image(self) -> dict[str, Any]:
        """The whole state as plain JSON, for `from_image`: unlike a snapshot with sessions and rounds under way."""
        return image.take(self._state)

    @classmethod
    def from_image(cls, options: EngineOptions, epoch: int, whole: dict[str, Any]) -> Self:
        """An engine that goes on exactly as the one whose `image` is ``whole``, of the same options and epoch.

        Raises:
            ImageError: ``whole`` is not an image of an engine of this job.
        """
        engine = cls(options, epoch)
        engine._state = image.restore(options, epoch, whole)
        return engine

    def view(self, now: float) -> EngineView:
        """A copy of the state for display."""
        return view(self._state, now)

    def _handle(self, event: Event, now: float) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - a table of events
        state = self._state
        match event:
            case StepReported():
                if state.current(event.learner, event.incarnation) is None:
                    return []
                return membership.stepped(state, event, now) + rounds.stepped(state, event.learner, now)
            case LearnerAlive():
                return leases.alive(state, event, now)
            case FragmentArrived():
                return rounds.arrived(state, event, now)
            case FragmentLate():
                return rounds.late(state, event, now)
            case FragmentDeclined():
                return rounds.declined(state, event, now)
            case FragmentApplied():
                return rounds.applied(state, event, now)
            case Merged():
                return rounds.merged(state, event, now)
            case LearnerJoined():
                return membership.join(state, event, now)
            case LearnerReady():
                actions = membership.ready(state, event, now)
                return [*actions, *rounds.learner_ready(state, event.learner, now)] if actions else []
            case LearnerLeft():
                actions = membership.left(state, event, now)
                return [*actions, *rounds.lost(state, event.learner, now)] if actions else []
            case TimerFired():
                return self._timer(event.name, now)
            case SnapshotAsked():
                return [Checkpoint(event.reason)]
            case LearnersPlanned():
                return pools.planned(state, event, now)
            case LearnerReadmitted():
                return membership.readmit(state, event)
            case LearnerFailed():
                return membership.failed(state, event, now)
            case Evaluated():
                return completion.evaluated(state, event, now)
            case _:
                assert_never(event)

    def _timer(self, name: str, now: float) -> list[Action]:
        if name == leases.LEASE_TIMER:
            return leases.check_leases(self._state, now)
        if name == healing.QUARANTINE_TIMER:
            return healing.timer(self._state, now)
        if name.startswith(closing.ROUND_TIMER):
            return rounds.timer(self._state, int(name.removeprefix(closing.ROUND_TIMER)), now)
        return completion.timer(self._state, name)


def _fewer_left(actions: list[Action]) -> bool:
    """Whether the engine has just given a learner up, or put one in quarantine."""
    return any(
        action.refusal is Refusal.GIVEN_UP if isinstance(action, Refuse) else _is_quarantine(action)
        for action in actions
    )


def _out(actions: list[Action]) -> list[tuple[str, bool]]:
    """Learners for which no round waits from now on, and whether because they have diverged."""
    ended = [(one.learner, one.refusal is Refusal.RESET) for one in actions if isinstance(one, Fence)]
    return ended + [(one.learner, True) for one in actions if isinstance(one, Note) and _is_quarantine(one)]


def _is_quarantine(action: Action) -> bool:
    return isinstance(action, Note) and action.subject == healing.QUARANTINED
