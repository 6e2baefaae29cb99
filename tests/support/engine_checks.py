"""Checks every decision of an engine against what the processes around it did and what the engine decided before."""

from dataclasses import dataclass, field, replace
from math import isclose, isfinite
from typing import Any

from diloco.core.engine.actions import (
    Action,
    Admit,
    AskFragment,
    Broadcast,
    CancelTimer,
    Discard,
    Evaluate,
    Fence,
    Finish,
    Merge,
    Note,
    NoteKind,
    Refusal,
    Refuse,
    SetTimer,
)
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Attempt, Event, FragmentArrived
from diloco.core.engine.options import EngineOptions
from diloco.core.merge import merge_weights

TOKENS_PER_STEP = 100
LONGEST_STEP_SECONDS = 3.0
"""No process reports a longer step."""
ROUNDING = 1e-6

Key = tuple[str, int, int, int, int]
"""Learner, incarnation, fragment, version, attempt."""


@dataclass
class Process:
    """One process of a learner."""

    learner: str
    instance: str
    incarnation: int = 0
    """Of its latest admission; 0: none."""
    epoch: int = 0
    """Of the syncer that admitted it."""
    training: bool = False
    """It has the whole model."""
    steps: int = 0
    versions: list[int] = field(default_factory=list)
    received_at: list[int] = field(default_factory=list)
    load: set[int] = field(default_factory=set)
    asks: dict[int, AskFragment] = field(default_factory=dict)
    news: dict[int, int] = field(default_factory=dict)
    """Fragment -> version that it may pull."""
    evaluation: Evaluate | None = None
    spoilt: bool = False
    """It gave an answer that cannot count: it is asked again after a while."""


def key_of(attempt: Attempt) -> Key:
    return attempt.learner, attempt.incarnation, attempt.fragment, attempt.version, attempt.attempt


class CheckedEngine:
    """An engine, its clock, its timers, its syncer's merges and all processes; `do` passes it an event."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.epoch = 1
        self.engine = Engine(options, self.epoch)
        self.now = 1000.0
        self.timers: dict[str, float] = {}
        self.merges: list[Merge] = []
        """Ordered and not done."""
        self.versions = [0] * options.schedule.fragments
        self.sessions: dict[str, int] = {}
        """Learner -> the incarnation that has a session."""
        self.heard_at: dict[str, float] = {}
        self.processes: dict[str, Process] = {}
        """By learner: the one that came last."""
        self.earlier: list[Process] = []
        """Those whose place another one has taken."""
        self.over: list[Process] = []
        """Copies of processes from when an incarnation of theirs ended."""
        self.pushed: list[FragmentArrived] = []
        self.finished = False
        self.sound = True
        """No check has failed."""
        self.kept: dict[str, Any] = self.engine.snapshot(self.now)
        self.admitted: dict[str, str] = {}
        """By learner, the process that was admitted last, as far as the engine knows."""
        self._known_admitted: dict[str, str] = {}
        """The same at the checkpoint."""
        self._known_earlier: list[Process] = []
        """Those in ``earlier`` of which the checkpoint knows."""
        self._started = 0
        self._incarnations: set[int] = set()
        self._asked: set[Key] = set()
        self._valid: set[Key] = set()
        """Asked for, and received while the incarnation had its session."""
        self._merged_keys: set[Key] = set()
        self._dropped: set[Key] = set()
        self._merged_digests: set[str] = set()
        self._made: set[tuple[int, int]] = set()
        self._open: dict[int, float] = {}
        """Fragment -> when its round was launched, until its members are frozen."""

    def _remember(self, process: Process) -> None:
        """Keep what an incarnation that ends could still send."""
        copy = replace(
            process,
            asks=process.asks.copy(),
            versions=process.versions.copy(),
            received_at=process.received_at.copy(),
        )
        self.over.append(copy)

    def current(self, process: Process) -> bool:
        """Whether the process has a session."""
        return self.sessions.get(process.learner) == process.incarnation

    def do(self, event: Event) -> list[Action]:
        """Pass an event to the engine, and check what it decides."""
        learner, incarnation = getattr(event, "learner", ""), getattr(event, "incarnation", 0)
        has_session = self.sessions.get(learner) == incarnation
        if has_session:
            self.heard_at[learner] = self.now
        if isinstance(event, FragmentArrived) and has_session and key_of(event) in self._asked:
            self._valid.add(key_of(event))
        was_finished, self.sound = self.finished, False
        actions = self.engine.step(event, self.now)
        for action in actions:
            self._check(action)
        if was_finished:
            allowed = Refuse | Fence | Note
            assert all(isinstance(action, allowed) for action in actions), f"decisions after the end: {actions}"
        self.check_state()
        self.sound = True
        return actions

    def check_state(self) -> None:
        """Check what holds between any two events."""
        view, schedule = self.engine.view(self.now), self.options.schedule
        assert list(self.engine.versions) == self.versions, "versions differ from the merges that are done"
        assert view.merged is None or 0 <= view.merged <= 1 + ROUNDING
        for one in view.recoveries.latest:
            assert min(one.down, one.loading, one.stepping, one.merging, one.lost_seconds) >= 0
            assert one.lost_seconds + one.seconds <= view.elapsed_seconds + ROUNDING
        assert all(sum(part.counts) == view.recoveries.count for part in view.recoveries.parts)
        most = schedule.in_flight(self.options.overlap_limit)
        assert len(self._open) + len(self.merges) <= max(1, most), "more fragments are in flight than may be"
        assert all(0 <= one.lead_steps <= schedule.interval // 2 for one in view.learners), "a lead is too long"
        for fragment in self._open:
            self._check_wait(fragment)
        present = {
            one.id: one.incarnation
            for one in view.learners
            if one.state in ("Loading", "Training", "Stalled", "Unplanned")
        }
        assert present == self.sessions, "the engine counts sessions that there are not"
        silent = {one.id: one.last_heard_seconds for one in view.learners if one.id in self.sessions}
        expected = {one: self.now - self.heard_at[one] for one in silent}
        assert silent == expected, "a lease is renewed by another's message, or not"

    def _check(self, action: Action) -> None:  # noqa: C901, PLR0912 - a table of actions
        match action:
            case Admit():
                self._admitted(action)
            case Fence():
                self._fenced(action)
            case AskFragment():
                self._was_asked(action)
            case Merge():
                self._ordered(action)
            case Discard():
                key = key_of(action)
                # What came before a restart, the new syncer neither knows nor has.
                assert key not in self._merged_keys & self._valid, f"{key} is merged, and dropped"
                # One that comes before it is asked for is dropped, and may come again once it is.
                if key in self._asked:
                    self._dropped.add(key)
            case Broadcast():
                assert action.version == self.versions[action.fragment]
                told = {learner: incarnation for learner, incarnation, _ in action.learners}
                assert told == self.sessions, "not every session, and no other, hears of a version"
                for learner in told:
                    self.processes[learner].news[action.fragment] = action.version
            case SetTimer():
                assert isfinite(action.at), action
                assert action.at >= self.now - ROUNDING, f"{action} is in the past of {self.now}"
                self.timers[action.name] = action.at
            case CancelTimer():
                self.timers.pop(action.name, None)
            case Evaluate():
                assert self.sessions.get(action.learner) == action.incarnation
                self.processes[action.learner].evaluation = action
            case Finish():
                assert not self.finished, "the job ends twice"
                self.finished = True
                self._open.clear()
            case Note(kind=NoteKind.ROUND_OPENED):
                assert action.fragment not in self._open, "two rounds of one fragment"
                self._open[action.fragment] = self.now
            case Note(kind=NoteKind.ROUND_ABANDONED):
                self._open.pop(action.fragment, None)
            case Refuse() | Note():
                pass
            case _:
                assert action.__class__.__name__ == "Checkpoint", action

    def _admitted(self, action: Admit) -> None:
        assert action.incarnation not in self._incarnations, "an incarnation is used twice"
        assert action.learner not in self.sessions, "two sessions of one learner"
        assert list(action.versions) == self.versions
        self._incarnations.add(action.incarnation)
        process = self.processes[action.learner]
        assert process.instance == action.instance, "the process that was admitted is not the one that came last"
        self.admitted[action.learner] = action.instance
        process.incarnation, process.epoch = action.incarnation, self.epoch
        process.asks.clear()
        process.evaluation, process.spoilt = None, False
        process.load = set(action.load)
        if process.load or not process.versions:
            process.steps = max(process.steps, action.steps)
        if not process.versions:
            assert len(action.load) == len(self.versions), "a new process does not get the whole model"
            process.versions = [-1] * len(self.versions)
            process.received_at = [process.steps] * len(self.versions)
        lag = self.options.max_version_lag
        for fragment, version in enumerate(self.versions):
            if fragment not in process.load:
                held = process.versions[fragment]
                assert 0 <= version - held <= lag, "a process trains on a version that is too old, or from elsewhere"
                if held < version:
                    process.news[fragment] = version
        self.sessions[action.learner] = action.incarnation
        self.heard_at[action.learner] = self.now

    def _fenced(self, action: Fence) -> None:
        assert self.sessions.get(action.learner) == action.incarnation, "fenced without a session"
        del self.sessions[action.learner]
        process = self.processes[action.learner]
        if process.incarnation == action.incarnation:
            self._remember(process)
        if action.refusal is Refusal.LEASE_EXPIRED and "silent" in action.reason:
            silent = self.now - self.heard_at[action.learner]
            assert silent >= self.options.lease_seconds - ROUNDING, f"a lease ended after {silent} s"

    def _was_asked(self, action: AskFragment) -> None:
        key = key_of(action)
        process = self.processes[action.learner]
        assert key not in self._asked, f"{key} is asked twice"
        assert self.sessions.get(action.learner) == action.incarnation, "a learner without a session is asked"
        assert process.training, "a learner is asked that has not said that it has the model"
        assert action.version == self.versions[action.fragment] + 1, "asked for another version than the next"
        self._asked.add(key)
        process.asks[action.fragment] = action

    def _ordered(self, action: Merge) -> None:
        assert action.version == self.versions[action.fragment] + 1, "a merge does not make the next version"
        assert (action.fragment, action.version) not in self._made, "a version is made twice"
        self._made.add((action.fragment, action.version))
        assert action.fragment in self._open, "a merge without a round"
        del self._open[action.fragment]
        names = [member.learner for member in action.members]
        assert names
        assert names == sorted(set(names)), "a learner is in a merge twice"
        tokens = {}
        for member in action.members:
            key = (member.learner, member.incarnation, action.fragment, action.version, member.attempt)
            assert key in self._valid, f"{key} came from a fenced incarnation, or was not asked for"
            assert key not in self._merged_keys, f"{key} is merged twice"
            assert key not in self._dropped, f"{key} is dropped, and merged"
            assert member.digest not in self._merged_digests, f"the payload of {key} is merged twice"
            self._merged_keys.add(key)
            self._merged_digests.add(member.digest)
            assert 0 <= action.version - 1 - member.base_version <= self.options.max_version_lag
            assert 0 < member.steps <= self.options.max_staleness_steps
            tokens[member.learner] = merge_weights.token_weight(member.tokens, member.steps)
        if not self.options.token_weights:
            tokens = dict.fromkeys(tokens, 1.0)
        for member in action.members:
            assert isclose(member.weight, tokens[member.learner] / sum(tokens.values()), rel_tol=1e-9)
        self.merges.append(action)

    def _check_wait(self, fragment: int) -> None:
        """Check that a round with its quorum waits neither beyond the overlap nor beyond a step."""
        current = self.engine._state.rounds[fragment]
        quorum_at = current.quorum_at
        if quorum_at is None:
            return
        overlap = self._open[fragment] + self.options.overlap_limit * LONGEST_STEP_SECONDS
        grace = self.options.grace_maximum_seconds
        window = quorum_at + (LONGEST_STEP_SECONDS if grace is None else grace)
        at = self.timers[current.timer]
        assert at <= max(overlap, window) + ROUNDING, "a round waits beyond its bound"
