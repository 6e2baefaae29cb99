"""A learner's link to a syncer whose sessions are scripted."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from diloco.learner.exchange.holdings import Holdings
from diloco.learner.exchange.link import Link, LinkOptions, Position, Shared
from diloco.learner.exchange.orders import EndKind, Orders, Wakeup
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.requests import Requests
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.exchange.transfers import Tasks
from diloco.wire.errors import WireError
from diloco.wire.messages import (
    Finished,
    Join,
    LearnerMessage,
    Progress,
    SyncerMessage,
    Welcome,
)
from tests.support.hand_loop import HandLoop

NO_PROGRESS = Progress(0, 100, 0)
OVER = Finished(complete=True, reason="enough")


class Script:
    """A session that yields the given messages, then ends or breaks."""

    def __init__(self, *says: SyncerMessage | WireError) -> None:
        self._rest = iter(says)
        self.closed = 0
        self.sent: list[LearnerMessage] = []

    async def send(self, message: LearnerMessage) -> None:
        self.sent.append(message)

    async def receive(self) -> SyncerMessage | None:
        await asyncio.sleep(0)  # others act on what came before
        said = next(self._rest, None)
        if isinstance(said, WireError):
            raise said
        return said

    async def close(self) -> None:
        self.closed += 1


class Transfers:
    """Stands for pushes, or for pulls: what is called is heard."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Bench:
    """A link; its sessions are opened one after the other from a script."""

    def __init__(self, *sessions: Script | WireError, uniform: float = -1.0) -> None:
        """Without ``uniform`` it joins again without any delay."""
        wakeup = Wakeup()
        self.loop = HandLoop()
        self.shared = Shared(
            Orders(wakeup),
            Requests(wakeup, fragments=2, ahead=1),
            Holdings(wakeup, 2),
            Outbox(3600.0),
            Residuals(),
        )
        self.pushes, self.pulls = Transfers(), Transfers()
        self.joins: list[Join] = []
        self.terms: list[Welcome] = []
        """The Welcomes that the client was told of."""
        self.found: Callable[[], str | None] = lambda: None
        """What stands in the way of a connection."""
        self._sessions = deque(sessions)
        who = Join("job", "r/p/0", "abc", "digest")
        options = LinkOptions(who, lambda: Position(5, 40), lambda: uniform, self._why_unreachable)
        transfers = cast("Any", (self.pushes, self.pulls))
        self.link = Link(options, self, self.shared, transfers, Tasks(self.shared.orders.fail))

    async def _why_unreachable(self) -> str | None:
        return self.found()

    async def open_session(self, join: Join) -> Script:
        self.joins.append(join)
        session = self._sessions.popleft()
        if isinstance(session, WireError):
            raise session
        return session

    def note_terms(self, welcome: Welcome) -> None:
        self.terms.append(welcome)

    def listen(self, *names: str) -> list[tuple[object, ...]]:
        """Record the arguments of these methods of what the link uses from now on."""
        heard: list[tuple[object, ...]] = []

        def tap(name: str) -> None:
            part, method = name.split(".")
            owner = getattr(self, part, None) or getattr(self.shared, part)
            plain = getattr(owner, method)

            def put(*arguments: object, **named: object) -> object:
                heard.append((name, *arguments, *named.values()))
                return plain(*arguments, **named)

            setattr(owner, method, put)

        for name in names:
            tap(name)
        return heard

    def run(self) -> tuple[EndKind, str]:
        self.loop.run_until_complete(self.link.run())
        ending = self.shared.orders.ending()
        assert ending is not None
        return ending.kind, ending.reason


def welcome(incarnation: int = 1, load: tuple[int, ...] = (), progress: Progress = NO_PROGRESS) -> Welcome:
    return Welcome(incarnation, "1", load, (3, 4), 9, 72, progress)
