"""The learner's session with the syncer: joins, acts on messages, and reconnects when the connection breaks.

What it receives goes to pushes and pulls, and to what the training thread looks at between two steps.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from diloco.core.dealing.pieces import Piece
from diloco.core.engine.actions import Refusal
from diloco.learner.data.sampler import Hand
from diloco.learner.exchange.holdings import Holdings
from diloco.learner.exchange.orders import Ending, EndKind, EvaluationOrder, Membership, Orders
from diloco.learner.exchange.outbox import Outbox, Sender
from diloco.learner.exchange.pulls import Pulls
from diloco.learner.exchange.pushes import Pushes
from diloco.learner.exchange.requests import GradientRequest, OuterGradient, Requests
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.exchange.transfers import Tasks, reconnecting
from diloco.learner.options import is_other_training
from diloco.runtime.backoff import Retries
from diloco.runtime.reminders import Reminder
from diloco.wire.errors import InvalidMessageError, UnavailableError, WireError
from diloco.wire.messages import (
    Dealt,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    Join,
    Leave,
    Progress,
    Refused,
    SyncerMessage,
    Welcome,
)

_log = logging.getLogger(__name__)

_ACKNOWLEDGING_SECONDS: Final = 5.0
"""The longest wait, at the end of a job, for a connection that takes nothing (ours)."""
_END_KINDS = {Refusal.FINISHED.value: EndKind.FINISHED, Refusal.STUCK.value: EndKind.STUCK}
"""How the process ends on a refusal, other than as refused."""


class SessionLike(Sender, Protocol):
    """The wire client's session."""

    async def receive(self) -> SyncerMessage | None:
        """The next message; None: the syncer has ended the session. Raises ``WireError`` if it broke."""

    async def close(self) -> None:
        """End it."""


class ClientLike(Protocol):
    """The part of the wire client that sessions use."""

    async def open_session(self, join: Join) -> SessionLike:
        """Begin a session, or raise ``WireError``."""

    def note_terms(self, welcome: Welcome) -> None:
        """Make transfers as it says."""


@dataclass(frozen=True)
class Shared:
    """What the training thread and the loop both use."""

    orders: Orders
    requests: Requests
    holdings: Holdings
    outbox: Outbox
    feedback: Residuals | None
    hand: Hand = field(default_factory=Hand)


@dataclass(frozen=True, slots=True)
class Position:
    """How far the learner is, for a Join and from a Welcome."""

    steps: int
    data_position: int
    training: str = ""
    """Id of the training that these are from, as long as it is not compared with the syncer's; otherwise empty."""


@dataclass(frozen=True)
class LinkOptions:
    """What a link says and does beside its messages."""

    who: Join
    """What every Join says alike."""
    position: Callable[[], Position]
    """Called before each Join."""
    uniform: Callable[[], float]
    """Random numbers in [0, 1)."""
    why_unreachable: Callable[[], Awaitable[str | None]]
    """Finds out what stands in the way of a connection. None: nothing is found."""


class Link:
    """Keeps a session open. ``current``, and the public attributes, may be read by any thread."""

    def __init__(
        self, options: LinkOptions, client: ClientLike, shared: Shared, transfers: tuple[Pushes, Pulls], tasks: Tasks
    ) -> None:
        self._options = options
        self._client = client
        self._shared = shared
        self._pushes, self._pulls = transfers
        self._tasks = tasks
        self._retries = Retries(reconnecting(options.uniform))
        self._reminder = Reminder()
        self._leaving = False
        self._membership: Membership | None = None
        self._sending: asyncio.Task[None] | None = None
        """Sends to the session."""
        self._lost_at: float | None = None
        self.welcome_position: Position | None = None
        """The position that the syncer has recorded for this learner, from the latest Welcome."""
        self.training = ""
        """Id of the training, as the latest Welcome says; empty: it said none."""
        self.sessions = 0
        """Number of sessions that the syncer has accepted."""

    def current(self) -> Membership | None:
        """The current admission; None: there is no session."""
        return self._membership

    def stop_rejoining(self) -> None:
        """Do not join again once the current session ends."""
        self._leaving = True

    async def goes_on(self, client: ClientLike) -> bool:
        """Whether a job that was over goes on, as with a larger budget. Asks by joining.

        If it is admitted it leaves at once, so that the next process of this learner counts as no restart.
        """
        try:
            session = await client.open_session(self._join())
            try:
                while (message := await session.receive()) is not None:
                    if isinstance(message, Welcome):
                        await session.send(Leave(message.incarnation, "the job goes on; the next process trains"))
                        return True
                    if isinstance(message, Refused):
                        return message.refusal != Refusal.FINISHED
            finally:
                await session.close()
        except WireError as error:
            _log.debug("cannot ask whether the job goes on: %s", error)
        return False

    async def run(self) -> None:
        """Keep a session until it is ended by the syncer, or for good by ``stop_rejoining``."""
        while not self._leaving:
            reason = await self._one_session()
            if reason is None or self._leaving:
                return
            await asyncio.sleep(self._retries.next_seconds())

    async def _one_session(self) -> str | None:
        """Join and act on messages. Returns why to join again; None: do not."""
        try:
            session = await self._client.open_session(self._join())
        except WireError as error:
            return await self._broken(error)
        try:
            if self._leaving:  # meanwhile
                return None
            while (message := await session.receive()) is not None:
                again = await self._handle(session, message)
                if again is not None:
                    return again or None
            return await self._lost("the syncer ended the session")
        except WireError as error:
            return await self._broken(error)
        finally:
            self._session_over()
            await session.close()
            if self._sending is not None:
                self._sending.cancel()

    def _session_over(self) -> None:
        """Drop what the ended session had asked for."""
        self._membership = None
        self._shared.outbox.session_over()
        self._shared.requests.session_over()
        self._shared.orders.session_over()
        self._pulls.session_over()
        self._pushes.session_over()

    def _join(self) -> Join:
        position = self._options.position()
        epoch, versions = self._shared.holdings.to_join_with()
        return replace(
            self._options.who,
            epoch=epoch,
            versions=versions,
            steps=position.steps,
            data_position=position.data_position,
            training=position.training,
            dealt=tuple(number for piece in self._shared.hand.claims() for number in piece),
        )

    async def _broken(self, error: WireError) -> str | None:
        # Refused at the first Join: trying again would give the same answer. After an admission, a new session helps.
        if self._membership is None and not error.retryable and not self._leaving:
            self._shared.orders.end(Ending(EndKind.REFUSED, str(error)))
            return None
        # Without an admission it may be that no connection comes about; gRPC's own text says little about why.
        never_connected = self._membership is None and isinstance(error, UnavailableError)
        return await self._lost(str(error), look_closer=never_connected)

    async def _lost(self, reason: str, *, look_closer: bool = False) -> str:
        if self._leaving:
            return reason
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if look_closer and self._reminder.may_speak(now):
            reason = await self._options.why_unreachable() or reason
        if self._reminder.due(reason, now):
            verb = "lost the syncer" if self.sessions else "cannot reach the syncer yet"
            _log.warning("%s (%s); retrying", verb, reason)
        else:
            _log.debug("still no syncer: %s", reason)
        return reason

    async def _handle(self, session: SessionLike, message: SyncerMessage) -> str | None:  # noqa: C901  # a table of messages
        """Act on a message. None: continue; a text: join again; empty: end."""
        shared = self._shared
        membership = self._membership
        match message:
            case Welcome() if membership is not None:
                return await self._lost("a second Welcome arrived")
            case Welcome():
                self._welcomed(session, message)
            case Refused():
                return await self._refused(message)
            case Finished():
                await self._acknowledge_end(session)
                shared.orders.end(Ending(EndKind.FINISHED, message.reason))
                return ""
            case Progress():
                shared.orders.progressed(message)
            case _ if membership is None:
                return await self._lost(f"{type(message).__name__} arrived before Welcome")
            case Dealt(first, start, length):
                shared.hand.put(Piece(first, start, length))
            case FragmentWanted():
                self._check_fragment(message.fragment)
                self._asked(GradientRequest(membership, message.fragment, message.version, message.attempt))
            case FragmentReady():
                self._check_fragment(message.fragment)
                self._fragment_ready(message)
            case EvaluationWanted():
                self._shared.orders.evaluate(EvaluationOrder(membership, message))
                for fragment, version in enumerate(message.versions if message.final else ()):
                    self._want(fragment, version)
        return None

    def _asked(self, request: GradientRequest) -> None:
        capture = self._shared.requests.put(request)
        if capture is not None:
            self._pushes.offer(OuterGradient(request, capture))

    async def _acknowledge_end(self, session: SessionLike) -> None:
        """Acknowledge that the job is over, so that the syncer does not take the closed connection for a failure."""
        membership = self._membership
        if membership is not None:
            # The syncer may have closed it already, or the connection may take nothing.
            with contextlib.suppress(WireError, TimeoutError):
                async with asyncio.timeout(_ACKNOWLEDGING_SECONDS):
                    await session.send(Leave(membership.incarnation, "the job is over"))

    def _check_fragment(self, fragment: int) -> None:
        fragments = len(self._shared.holdings.versions())
        if fragment >= fragments:
            raise InvalidMessageError(f"the syncer speaks of fragment {fragment}; there are {fragments}")

    def _welcomed(self, session: SessionLike, welcome: Welcome) -> None:
        shared = self._shared
        theirs, ours = len(welcome.versions), len(shared.holdings.versions())
        if theirs != ours:
            raise InvalidMessageError(f"the syncer's model has {theirs} fragments, this learner's has {ours}")
        for fragment in welcome.load:
            self._check_fragment(fragment)
        membership = Membership(welcome.epoch, welcome.incarnation)
        self.sessions += 1
        before, self.training = self.training, welcome.training
        self.welcome_position = Position(welcome.steps, welcome.data_position)
        shared.orders.progressed(welcome.progress)
        self._membership = membership
        self._client.note_terms(welcome)
        shared.outbox.session_begins(membership)
        self._pulls.session_begins(membership)
        self._pushes.session_begins(membership)
        if shared.feedback is not None:
            shared.feedback.session_begins(membership.epoch, welcome.versions, welcome.counted_in)
        if shared.holdings.admitted(membership, welcome.load):
            shared.outbox.ready(membership)
        shared.outbox.deliver()
        self._sending = self._tasks.start(shared.outbox.run(session, membership))
        # Only now, as the inner loop then waits for what is to be loaded.
        if welcome.reset:
            shared.orders.start_over("the syncer says that this learner has diverged")
        elif is_other_training(before, welcome.training):
            shared.orders.start_over("the syncer has begun another training")
        away = "" if self._lost_at is None else f" after {time.monotonic() - self._lost_at:.1f} s"
        verb = "joined" if self.sessions == 1 else "rejoined"
        _log.info(
            "%s%s as incarnation %d of epoch %s; %d of %d fragments to load",
            verb,
            away,
            welcome.incarnation,
            welcome.epoch,
            len(welcome.load),
            len(welcome.versions),
        )
        self._lost_at = None
        self._reminder.over()
        self._retries.worked()
        # Include fragments that are only a little behind: their notices went to the previous session.
        for fragment in (*welcome.load, *range(len(welcome.versions))):
            self._want(fragment, welcome.versions[fragment])

    def _want(self, fragment: int, version: int) -> None:
        self._pulls.want(fragment, version, load=self._shared.holdings.awaits(fragment))

    def _fragment_ready(self, notice: FragmentReady) -> None:
        shared = self._shared
        if not notice.merged:
            shared.requests.not_merged(notice.fragment, notice.version)
        if shared.feedback is not None:
            shared.feedback.outcome(notice.fragment, notice.version, merged=notice.merged)
        shared.orders.progressed(notice.progress)
        self._want(notice.fragment, notice.version)

    async def _refused(self, refused: Refused) -> str:
        if refused.refusal == Refusal.LEASE_EXPIRED:
            return await self._lost(f"lease expired: {refused.reason}")
        if refused.refusal == Refusal.RESET:
            return await self._lost(f"to start over: {refused.reason}")
        if refused.refusal == Refusal.UNKNOWN_LEARNER:
            # The learner's own manifest has it: the syncer, which reads another copy, has not seen a new pool yet.
            return await self._lost(f"it waits until this learner is in the syncer's manifest: {refused.reason}")
        kind = _END_KINDS.get(refused.refusal, EndKind.REFUSED)
        self._shared.orders.end(Ending(kind, f"{refused.refusal}: {refused.reason}"))
        return ""
