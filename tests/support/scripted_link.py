"""A learner's link to a syncer whose sessions are scripted."""

from collections import deque
from collections.abc import Iterator

from diloco.learner.link.syncer_link import Link, Mailboxes, Position
from diloco.learner.mailboxes.control_outbox import ControlOutbox
from diloco.learner.mailboxes.holdings import Holdings
from diloco.learner.mailboxes.orders import EndKind, Orders
from diloco.learner.mailboxes.pull_queue import PullQueue
from diloco.learner.mailboxes.push_queue import PushQueue
from diloco.learner.mailboxes.requests import Requests
from diloco.learner.mailboxes.residuals import Residuals
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.errors import WireError
from diloco.wire.messages import (
    Finished,
    Join,
    LearnerMessage,
    Progress,
    SyncerMessage,
    Welcome,
)

NO_PROGRESS = Progress(0, 100, 0)
OVER = Finished(complete=True, reason="enough")


class Script:
    """A session that yields the given messages, then ends or breaks."""

    def __init__(self, *says: SyncerMessage | WireError) -> None:
        self.says = says
        self.backlog = 0
        self.closed = 0
        self.sent: list[LearnerMessage] = []

    def send(self, message: LearnerMessage) -> None:
        self.sent.append(message)

    def __iter__(self) -> Iterator[SyncerMessage]:
        for said in self.says:
            if isinstance(said, WireError):
                raise said
            yield said

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A link with its mailboxes; its sessions are opened one after the other from a script."""

    def __init__(self, *sessions: Script | WireError, uniform: float = -1.0) -> None:
        """Without ``uniform`` it joins again without any delay."""
        wakeup = Wakeup()
        self.boxes = Mailboxes(
            Orders(wakeup),
            Requests(wakeup, fragments=2, ahead=1),
            PullQueue(wakeup),
            PushQueue(),
            ControlOutbox(3600.0),
            Holdings(2),
            Residuals(),
        )
        self.joins: list[Join] = []
        self._sessions = deque(sessions)
        who = Join("job", "r/p/0", "abc", "digest")
        self.link = Link(who, self._open, self.boxes, lambda: Position(5, 40), lambda: uniform)

    def _open(self, join: Join) -> Script:
        self.joins.append(join)
        session = self._sessions.popleft()
        if isinstance(session, WireError):
            raise session
        return session

    def listen(self, *names: str) -> list[tuple[object, ...]]:
        """Record the arguments of these methods of the mailboxes from now on."""
        heard: list[tuple[object, ...]] = []

        def tap(name: str) -> None:
            box, method = name.split(".")
            plain = getattr(getattr(self.boxes, box), method)

            def put(*arguments: object, **named: object) -> object:
                heard.append((name, *arguments, *named.values()))
                return plain(*arguments, **named)

            setattr(getattr(self.boxes, box), method, put)

        for name in names:
            tap(name)
        return heard

    def run(self) -> tuple[EndKind, str]:
        self.link.run()
        ending = self.boxes.orders.ending()
        assert ending is not None
        return ending.kind, ending.reason


def welcome(incarnation: int = 1, load: tuple[int, ...] = (), progress: Progress = NO_PROGRESS) -> Welcome:
    return Welcome(incarnation, "1", load, (3, 4), 9, 72, progress)
