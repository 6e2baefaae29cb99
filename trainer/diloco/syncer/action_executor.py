"""Carries out the engine's actions on sessions, payloads, tensors and disk.

It makes no decisions. Merges run one at a time in a thread; everything else is short and runs on the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import assert_never

import torch

from diloco.core.engine import actions
from diloco.core.engine.actions import Action, NoteKind
from diloco.core.engine.events import Event, LearnerLeft, Merged
from diloco.spec.status.curves import FragmentCurve
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.disk.payload_files import keep_payload
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.merging import MergeResult, Merging
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.sessions import Sessions
from diloco.tape.explain import describe
from diloco.wire import messages
from diloco.wire.messages import PushKey

_log = logging.getLogger(__name__)

_QUIET = (actions.AskFragment, actions.Merge, actions.Broadcast, actions.Discard, actions.Checkpoint)
_QUIET_NOTES = (
    NoteKind.ROUND_OPENED,
    NoteKind.ROUND_WAITS,
    NoteKind.ROUND_ABANDONED,
    NoteKind.LEARNER_EXCLUDED,
    NoteKind.REPEATED,
    NoteKind.PACE_FOLLOWS,
    NoteKind.MEMBER_LEFT_OUT,
)
"""Decisions of every round, and those logged elsewhere: in the log only at DEBUG."""


@dataclass(frozen=True, slots=True)
class MergeWork:
    """What merges, checkpoints and the end are made with."""

    merging: Merging
    threads: int
    """torch threads of a merge."""
    checkpointer: Checkpointer
    payloads: Path | None
    """Where merged payloads are kept; None: nowhere."""
    finish: Callable[[actions.Finish], None]
    once_on_disk: Callable[[Callable[[], None]], None]
    """Calls a function once the end of the job is on disk: who is told of it leaves for good."""


class ActionExecutor:
    """Does what the engine orders."""

    def __init__(
        self, collaborators: Collaborators, sessions: Sessions, engine_loop: EngineLoop, work: MergeWork
    ) -> None:
        self._sessions = sessions
        self._engine_loop = engine_loop
        self._inbox, self._store, self._posted = collaborators.inbox, collaborators.store, collaborators.posted
        self._metrics, self._curves = collaborators.metrics, collaborators.curves
        self._decisions = collaborators.decisions
        self._dealing = collaborators.dealing
        self._merging, self._checkpointer = work.merging, work.checkpointer
        self._payloads, self._finish, self._once_on_disk = work.payloads, work.finish, work.once_on_disk
        # torch keeps its number of threads per thread.
        self._thread = ThreadPoolExecutor(1, "merge", torch.set_num_threads, (work.threads,))
        self._orders: deque[actions.Merge] = deque()
        self._running = False
        self._result: MergeResult | None = None
        self._order: actions.Merge | None = None
        """Of the merge under way."""
        self.record_problem = ""
        """Why a payload is missing from the record; empty if none is."""

    def close(self) -> None:
        """End the thread, after the merge that is running."""
        self._thread.shutdown()

    def commit(self, event: Event) -> bool:
        """Make a merge's result the global model just before the engine is told, so that the two never disagree."""
        if isinstance(event, LearnerLeft):
            self._session_over(event.learner, event.incarnation)
        return not isinstance(event, Merged) or self._commit_merge()

    def _commit_merge(self) -> bool:
        """False: the job has ended in this same batch of events, and its model stays as it is."""
        result, self._result = self._result, None
        assert result is not None
        # The state is consistent again only after the events of this batch.
        asyncio.get_running_loop().call_soon(self._merge_over)
        if self._engine_loop.engine.finished:
            return False
        merged = result.event
        self._store.commit(merged.fragment, merged.version, result.made, result.digest, result.update)
        self._inbox.void_version(merged.fragment, merged.version)
        self._posted.made(merged.fragment)
        assert self._order is not None
        self._dealing.merged(self._order, merged)
        return True

    def _session_over(self, learner: str, incarnation: int) -> None:
        self._inbox.void_session(learner, incarnation)
        self._posted.session_over(learner, incarnation)

    def carry_out(self, action: Action, now: float) -> None:  # noqa: C901, PLR0912  # a table of actions
        """Do what the engine ordered, or start it."""
        self._metrics.observe(action, now)
        self._curves.observe(action, now)
        self._decisions.observe(action)
        _log_decision(action)
        match action:
            case actions.Admit():
                self._posted.admitted(action.learner, action.incarnation)
                self._sessions.admit(action, self._progress())
            case actions.Refuse(refusal=actions.Refusal.FINISHED):
                self._once_on_disk(partial(self._sessions.refuse, action))
            case actions.Refuse():
                self._sessions.refuse(action)
            case actions.Fence():
                self._session_over(action.learner, action.incarnation)
                self._sessions.fence(action)
            case actions.AskFragment(learner, incarnation, fragment, version, attempt):
                self._inbox.ask(PushKey(learner, incarnation, fragment, version, attempt))
                self._sessions.send(learner, incarnation, messages.FragmentWanted(fragment, version, attempt))
            case actions.Merge():
                self._orders.append(action)
                self._start_merge()
            case actions.Discard(learner, incarnation, fragment, version, attempt):
                self._inbox.drop(PushKey(learner, incarnation, fragment, version, attempt))
            case actions.Broadcast():
                progress = self._progress()
                for learner, incarnation, merged in action.learners:
                    ready = messages.FragmentReady(action.fragment, action.version, merged, progress)
                    self._sessions.send(learner, incarnation, ready)
            case actions.Checkpoint():
                self._checkpointer.request(action.reason)
            case actions.Evaluate():
                wanted = messages.EvaluationWanted(action.evaluation, action.versions, action.final)
                self._sessions.send(action.learner, action.incarnation, wanted)
            case actions.Finish():
                self._finish(action)
            case actions.Note() | actions.SetTimer() | actions.CancelTimer():
                pass
            case _:
                assert_never(action)

    def _progress(self) -> messages.Progress:
        progress = self._engine_loop.engine.progress
        return messages.Progress(round(progress.merged_tokens), progress.budget_tokens, progress.merges)

    def _start_merge(self) -> None:
        if self._running or not self._orders:
            return
        self._order = order = self._orders.popleft()
        prepared = self._merging.prepare(order, self._store, self._inbox.payload)
        self._running = True
        self._checkpointer.merge_begins()

        def work() -> MergeResult:
            if self._payloads is not None:
                for member, (contribution, _) in zip(order.members, prepared.members, strict=True):
                    self._keep(self._payloads, member.digest, contribution.payload)
            return self._merging.run(prepared)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._thread, work).add_done_callback(self._merged)

    def _merged(self, done: asyncio.Future[MergeResult]) -> None:
        try:
            self._announce(done.result())
        except Exception as error:  # noqa: BLE001  # a callback of the loop: otherwise it would be lost
            self._engine_loop.fail(error)

    def _announce(self, result: MergeResult) -> None:
        merged = result.event
        self._metrics.merge_seconds.observe(merged.seconds)
        self._metrics.members_clipped.inc(result.clipped)
        if result.problem:
            self._metrics.merge_failures.inc()
            _log.warning(
                "fragment %d is not merged and stays at version %d: %s", merged.fragment, merged.version, result.problem
            )
        elif self._order is not None and self._order.members:
            curve = FragmentCurve(
                version=merged.version, gradient_norm=result.gradient_norm, agreement=result.agreement
            )
            self._curves.fragments[merged.fragment] = curve
            self._metrics.observe_curve(merged.fragment, curve)
        if result.not_encoded:
            self._metrics.updates_not_encoded.inc()
            _log.warning(
                "version %d of fragment %d is sent whole because its update cannot be encoded: %s",
                merged.version,
                merged.fragment,
                result.not_encoded,
            )
        for one in merged.left_out:
            self._metrics.members_left_out.inc()
            _log.warning(
                "version %d of fragment %d is merged without %s: %s",
                merged.version,
                merged.fragment,
                one.learner,
                one.reason,
            )
        self._result = result
        self._engine_loop.post(merged)

    def _merge_over(self) -> None:
        self._running = False
        try:
            self._checkpointer.merge_ended()
            self._start_merge()
        except Exception as error:  # noqa: BLE001  # a callback of the loop: otherwise it would be lost
            self._engine_loop.fail(error)

    def _keep(self, directory: Path, digest: str, payload: torch.Tensor) -> None:
        try:
            keep_payload(directory, digest, payload)
        except OSError as error:
            if not self.record_problem:
                _log.error("cannot record a payload; later merges cannot be replayed: %s", error)
            self.record_problem = error.strerror or str(error)


def _log_decision(action: Action) -> None:
    quiet = isinstance(action, _QUIET) or (isinstance(action, actions.Note) and action.kind in _QUIET_NOTES)
    level = logging.DEBUG if quiet else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(level, "%s", describe(action))
