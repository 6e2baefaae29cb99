"""Carries out the engine's actions on sessions, payloads, tensors and disk.

It makes no decisions. Merges run one at a time in a thread; everything else is short and runs on the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import assert_never

import torch

from diloco.core import actions
from diloco.core.actions import Action
from diloco.core.events import Event, LearnerLeft, Merged
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.disk.payload_files import keep_payload
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.merging import MergeResult, Merging
from diloco.syncer.peers.inbox import Inbox, PushKey
from diloco.syncer.peers.posted_pulls import PostedPulls
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore
from diloco.tape.explain import describe
from diloco.wire import messages

_log = logging.getLogger(__name__)

_QUIET = (actions.AskFragment, actions.Merge, actions.Broadcast, actions.Discard, actions.Checkpoint)
_QUIET_NOTES = ("RoundOpened", "RoundWaits", "RoundAbandoned", "LearnerExcluded", "Repeated", "MemberLeftOut")
"""Decisions of every round, or those logged elsewhere: on the tape, and in the log only at DEBUG."""


class ActionExecutor:
    """Does what the engine orders."""

    def __init__(  # noqa: PLR0913  # what actions act on
        self,
        *,
        engine_loop: EngineLoop,
        sessions: Sessions,
        inbox: Inbox,
        store: FragmentStore,
        posted: PostedPulls,
        merging: Merging,
        checkpointer: Checkpointer,
        metrics: SyncerMetrics,
        payloads: Path | None,
        threads: int,
        finish: Callable[[actions.Finish], None],
    ) -> None:
        """Connect the parts that actions act on.

        Args:
            engine_loop: Where events go.
            sessions: Learners' sessions.
            inbox: Outer gradients.
            store: The global model.
            posted: Pulls that wait for a version.
            merging: Computes merges.
            checkpointer: Checkpoints.
            metrics: Counters.
            payloads: Where merged payloads are kept; None: nowhere.
            threads: torch threads of a merge.
            finish: Called once the job is over.
        """
        self._engine_loop = engine_loop
        self._sessions = sessions
        self._inbox = inbox
        self._store = store
        self._posted = posted
        self._merging = merging
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._payloads = payloads
        self._finish = finish
        # torch keeps its number of threads per thread.
        self._thread = ThreadPoolExecutor(1, "merge", torch.set_num_threads, (threads,))
        self._orders: deque[actions.Merge] = deque()
        self._running = False
        self._result: MergeResult | None = None
        self.record_problem = ""
        """Why a payload is missing from the record; empty if none is."""

    def close(self) -> None:
        """End the merge thread, after the merge that is running."""
        self._thread.shutdown()

    def before(self, event: Event) -> bool:
        """Make a merge's result current just before the engine receives its event, so that the two never disagree."""
        if isinstance(event, Merged):
            result, self._result = self._result, None
            assert result is not None
            # The state is consistent again only after the events of this batch.
            asyncio.get_running_loop().call_soon(self._merge_over)
            # The engine may have ended the job in this same batch of events.
            if self._engine_loop.engine.finished:
                return False
            self._store.commit(result.fragment, result.version, result.made, result.digest, result.update)
            self._inbox.void_version(result.fragment, result.version)
            self._posted.made(result.fragment)
        elif isinstance(event, LearnerLeft):
            self._inbox.void_session(event.learner, event.incarnation)
            self._posted.session_over(event.learner, event.incarnation)
        return True

    def carry_out(self, action: Action, now: float) -> None:  # noqa: C901  # a table of actions
        """Do what the engine ordered, or start it."""
        self._metrics.observe(action, now)
        _log_decision(action)
        match action:
            case actions.Admit():
                self._posted.admitted(action.learner, action.incarnation)
                self._sessions.admit(action, self._progress())
            case actions.Refuse():
                self._sessions.refuse(action)
            case actions.Fence():
                self._inbox.void_session(action.learner, action.incarnation)
                self._posted.session_over(action.learner, action.incarnation)
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
                self._broadcast(action)
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

    def _broadcast(self, action: actions.Broadcast) -> None:
        progress = self._progress()
        for learner, incarnation, merged in action.learners:
            ready = messages.FragmentReady(action.fragment, action.version, merged, progress)
            self._sessions.send(learner, incarnation, ready)

    def _progress(self) -> messages.Progress:
        progress = self._engine_loop.engine.progress
        return messages.Progress(round(progress.merged_tokens), progress.budget_tokens, progress.merges)

    def _start_merge(self) -> None:
        if self._running or not self._orders:
            return
        order = self._orders.popleft()
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
        error = done.exception()
        if error is not None:
            self._engine_loop.fail(error)
            return
        result = done.result()
        self._metrics.merge_seconds.observe(result.seconds)
        if result.problem:
            self._metrics.merge_failures.inc()
            _log.warning(
                "fragment %d is not merged and stays at version %d: %s", result.fragment, result.version, result.problem
            )
        if result.not_encoded:
            self._metrics.updates_not_encoded.inc()
            _log.warning(
                "version %d of fragment %d is sent whole because its update cannot be encoded: %s",
                result.version,
                result.fragment,
                result.not_encoded,
            )
        for one in result.left_out:
            self._metrics.members_left_out.inc()
            _log.warning(
                "version %d of fragment %d is merged without %s: %s",
                result.version,
                result.fragment,
                one.learner,
                one.reason,
            )
        self._result = result
        self._engine_loop.post(
            Merged(
                result.fragment,
                result.version,
                result.digest.hex(),
                result.seconds,
                failed=bool(result.problem),
                left_out=result.left_out,
                proof=result.proof,
            )
        )

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
    quiet = isinstance(action, _QUIET) or (isinstance(action, actions.Note) and action.subject in _QUIET_NOTES)
    level = logging.DEBUG if quiet else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(level, "%s", describe(action))
