"""Learners' sessions: translates the wire's messages into the engine's events and its actions into messages.

A session is open before the engine has decided about it, and ``admitted`` once the engine has accepted it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from diloco.core.engine.actions import Admit, Fence, Refuse
from diloco.core.engine.events import (
    Evaluated,
    Event,
    FragmentApplied,
    FragmentDeclined,
    LearnerAlive,
    LearnerJoined,
    LearnerLeft,
    LearnerReady,
    StepReported,
)
from diloco.core.fragments import Layout, Match
from diloco.runtime.process.busy import Moved
from diloco.spec.words import shortlist
from diloco.syncer.peers.claims import ClaimError
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.link_terms import LinkTerms
from diloco.syncer.peers.message_rate import TokenBucket
from diloco.wire import messages
from diloco.wire.errors import InvalidMessageError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import Join, LearnerMessage, SyncerMessage

_log = logging.getLogger(__name__)

_WAYS_SHOWN: Final = 3
"""Ways to compute that the status lists (ours): there is more than one only where hardware differs."""
Send = Callable[[SyncerMessage], None]


class _Session:
    def __init__(self, join: Join, send: Send) -> None:
        self.join = join
        self.send = send
        self.over = asyncio.Event()
        """Set when the syncer ends it."""
        self.incarnation: int | None = None
        self.left = False
        """The learner has announced that it leaves."""
        self.problem = ""
        """Why the syncer ends it, if the learner broke a rule."""


class Sessions:
    """All sessions of a syncer. Owned by the event loop."""

    def __init__(
        self,
        collaborators: Collaborators,
        terms: Callable[[str], LinkTerms] = lambda _: LinkTerms(),
        training: str = "",
    ) -> None:
        """``terms``: how a learner's transfers are made. ``training``: its id; empty: not known."""
        self._terms = terms
        self._training = training
        self._job, self._epoch = collaborators.job, collaborators.epoch
        self._layout, self._store = collaborators.layout, collaborators.store
        self._claims, self._admission = collaborators.claims, collaborators.admission
        self._meter, self._loads, self._curves = collaborators.meter, collaborators.loads, collaborators.curves
        self._dealing = collaborators.dealing
        self._clock, self._post = collaborators.clock, collaborators.post
        self._joining: dict[tuple[str, str], _Session] = {}
        self._admitted: dict[str, _Session] = {}
        self._ways: dict[str, str] = {}
        """By learner: what its latest session computes in."""

    @property
    def admitted(self) -> int:
        """Number of learners that have a session."""
        return len(self._admitted)

    @property
    def computing(self) -> str:
        """What learners with a session compute in, in words; with how many of them if they differ.

        Without a session, what all learners computed in. Empty: not known.
        """
        ways = [self._ways[learner] for learner in self._admitted or self._ways]
        counts = Counter(how for how in ways if how)
        most = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        if len(most) > 1:
            return shortlist([f"{how} ({count} learners)" for how, count in most], _WAYS_SHOWN)
        return most[0][0] if most else ""

    def current(self, learner: str, incarnation: int) -> bool:
        """Whether this incarnation of the learner has a session."""
        session = self._admitted.get(learner)
        return session is not None and session.incarnation == incarnation

    async def serve(self, join: Join, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Serve one session until it ends.

        Raises:
            WireError: the joining process does not belong to this job, or breaks the protocol.
        """
        check_belongs(join, self._job, self._layout)
        if join.training and self._training and join.training != self._training:
            # Its checkpoint is of another training: how far it was there does not count here.
            join = replace(join, steps=0, data_position=0)
        try:
            self._claims.check_join(join)
        except ClaimError as error:
            raise RefusedError(str(error)) from None
        no_room = self._admission.problem_with(join.learner, (learner for learner, _ in self._joining))
        if no_room is not None:
            raise UnavailableError(no_room)  # the manifest that plans it may arrive soon
        self._dealing.check(join)
        session = _Session(join, send)
        key = (join.learner, join.instance)
        replaced = self._joining.pop(key, None)
        if replaced is not None:
            replaced.over.set()
        self._joining[key] = session
        known = join.epoch == self._epoch and len(join.versions) == len(self._store.versions)
        versions = join.versions if known else ()
        joined = LearnerJoined(join.learner, join.instance, versions, join.steps, join.data_position)
        self._post(joined)
        try:
            await read_until(session.over, self._read(session, inbound))
            if session.problem:
                raise RefusedError(session.problem)
        finally:
            self._ended(key, session)

    def admit(self, action: Admit, progress: messages.Progress) -> None:
        """Welcome a process that the engine admits."""
        session = self._joining.pop((action.learner, action.instance), None)
        if session is None:  # it left before it was admitted
            self._post(LearnerLeft(action.learner, action.incarnation, clean=False))
            return
        previous = self._admitted.get(action.learner)
        if previous is not None:
            previous.over.set()
        session.incarnation = action.incarnation
        self._admitted[action.learner] = session
        self._ways[action.learner] = session.join.computes
        self._admission.admitted(action.learner)
        if action.load:
            self._loads.begins(action.learner)
        else:
            self._loads.ends(action.learner)
        self._claims.admitted(action)
        terms = self._terms(action.learner)
        welcome = messages.Welcome(
            action.incarnation,
            self._epoch,
            action.load,
            action.versions,
            action.steps,
            action.data_position,
            progress,
            connections=terms.connections,
            bytes_per_second=round(terms.bytes_per_second),
            reset=action.reset,
            training=self._training,
            counted_in=action.counted_in,
        )
        self._deliver(session, welcome)
        end = partial(self.end, action.learner, action.incarnation)
        self._dealing.admitted(session.join, action.data_position, partial(self._deliver, session), end)

    def refuse(self, action: Refuse) -> None:
        """Refuse a joining process."""
        session = self._joining.pop((action.learner, action.instance), None)
        if session is not None:
            self._deliver(session, messages.Refused(action.refusal.value, action.reason))
            session.over.set()

    def fence(self, action: Fence) -> None:
        """End the session of an incarnation."""
        session = self._admitted.get(action.learner)
        if session is not None and session.incarnation == action.incarnation:
            del self._admitted[action.learner]
            self._loads.ends(action.learner)
            self._dealing.over(action.learner, for_good=False)
            self._deliver(session, messages.Refused(action.refusal.value, action.reason))
            session.over.set()

    def end(self, learner: str, incarnation: int, problem: str) -> None:
        """End the session of a learner that broke a rule, and tell it which. It may join again."""
        session = self._admitted.get(learner)
        if session is not None and session.incarnation == incarnation:
            session.problem = problem
            session.over.set()

    def send(self, learner: str, incarnation: int, message: SyncerMessage) -> None:
        """Send a message to a learner, if this incarnation of it still has a session."""
        session = self._admitted.get(learner)
        if session is not None and session.incarnation == incarnation:
            self._deliver(session, message)

    def send_all(self, message: SyncerMessage) -> None:
        """Send a message to every learner."""
        for session in self._admitted.values():
            self._deliver(session, message)

    async def _read(self, session: _Session, inbound: AsyncIterator[LearnerMessage]) -> None:
        bucket = TokenBucket(self._clock)
        async for message in inbound:
            if wait_seconds := bucket.wait_seconds():
                await asyncio.sleep(wait_seconds)
            if isinstance(message, messages.Leave):
                _log.info("%s leaves: %s", session.join.learner, message.reason)
                session.left = True
                return
            event = self._event(session.join.learner, message)
            if session.incarnation is not None:
                event = self._checked(session.incarnation, event)
                self._measure(session, message)
                if isinstance(event, StepReported) and self.current(event.learner, event.incarnation):
                    event = replace(event, data_position=self._dealing.reported(event.learner, event.data_position))
                ready = isinstance(event, LearnerReady) and event.incarnation == session.incarnation
                if ready and self._admitted.get(session.join.learner) is session:
                    self._loads.ends(session.join.learner)
                self._post(event)

    def _ended(self, key: tuple[str, str], session: _Session) -> None:
        if self._joining.get(key) is session:
            del self._joining[key]
        if self._admitted.get(session.join.learner) is session:
            assert session.incarnation is not None
            del self._admitted[session.join.learner]
            self._loads.ends(session.join.learner)
            self._dealing.over(session.join.learner, for_good=session.left)
            self._post(LearnerLeft(session.join.learner, session.incarnation, clean=session.left))

    def _deliver(self, session: _Session, message: SyncerMessage) -> None:
        try:
            session.send(message)
        except WireError as error:  # its queue is full or its connection gone: it joins again when it can
            _log.warning("%s cannot be told %s: %s", session.join.learner, type(message).__name__, error)
            session.over.set()

    def _event(self, learner: str, message: LearnerMessage) -> Event:  # a table of messages
        match message:
            case messages.StepReport():
                return StepReported(
                    learner,
                    message.incarnation,
                    message.step,
                    message.tokens,
                    message.step_seconds,
                    message.loss,
                    message.data_position,
                    message.spent,
                )
            case messages.Ready():
                return LearnerReady(learner, message.incarnation)
            case messages.Alive():
                return LearnerAlive(learner, message.incarnation)
            case messages.Declined(incarnation, fragment, version, attempt, broken):
                self._check_fragment(fragment)
                return FragmentDeclined(learner, incarnation, fragment, version, attempt, broken)
            case messages.Applied(incarnation, fragment, version, step):
                self._check_fragment(fragment)
                if version > self._store.current(fragment).version:
                    raise InvalidMessageError(f"fragment {fragment} has no version {version} yet")
                return FragmentApplied(learner, incarnation, fragment, version, step)
            case messages.EvaluationReport(incarnation, evaluation, loss, exact):
                return Evaluated(learner, incarnation, evaluation, loss, exact)
            case _:
                raise InvalidMessageError(f"{type(message).__name__} is not expected in an open session")

    def _checked(self, incarnation: int, event: Event) -> Event:
        """An event with what counts of its claims. Raises InvalidMessageError for work that cannot have been done."""
        match event:
            case StepReported() if event.incarnation == incarnation:
                try:
                    return self._claims.reported(event)
                except ClaimError as error:
                    raise InvalidMessageError(str(error)) from None
            case _:
                return event

    def _measure(self, session: _Session, message: LearnerMessage) -> None:
        """Record a learner's own figures, and its count of its pulls if it sends one."""
        if isinstance(message, messages.StepReport):
            self._curves.reported(session.join.learner, message)
            if message.received_bytes:
                self._meter.pulled(session.join.learner, Moved(message.receiving_seconds, message.received_bytes))

    def _check_fragment(self, fragment: int) -> None:
        fragments = len(self._store.versions)
        if fragment >= fragments:
            raise InvalidMessageError(f"fragment {fragment} of {fragments}: they count from 0")


async def read_until(over: asyncio.Event, reading: Coroutine[Any, Any, None]) -> None:
    """Read a session's messages until they end, or the session is ``over``. Raises what ``reading`` raises."""
    read, ended = asyncio.ensure_future(reading), asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({read, ended}, return_when=asyncio.FIRST_COMPLETED)
        if read.done():
            read.result()
    finally:
        ended.cancel()
        read.cancel()
        await asyncio.gather(ended, read, return_exceptions=True)


def check_belongs(join: Join, job: str, layout: Layout) -> None:
    """Raise RefusedError unless a process that joins is of this job and has this model."""
    if join.job != job:
        raise RefusedError(f"this is the syncer of job {job!r}, not of {join.job!r}")
    match layout.match(join.layout_digest):
        case Match.OTHER_CUT:
            raise RefusedError(
                f"{join.learner} has another model than the syncer (layout {join.layout_digest[:12]},"
                f" not {layout.cut[:12]}): give both the same manifest and version"
            )
        case Match.OTHER_CONSTANTS:
            raise RefusedError(
                f"{join.learner} has other frozen parameters or buffers than the syncer: give both the same base "
                "model, and do not save tables that each process computes (persistent=False)"
            )
        case Match.SAME:
            pass
