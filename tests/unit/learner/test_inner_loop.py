"""What the inner loop reports of its time, with a trainer that only counts and a clock that the test moves."""

import threading
from typing import Any, cast

from diloco.core.spent import TimeSpent
from diloco.learner.activity import Activity
from diloco.learner.inner_loop import InnerLoop, LoopSettings, LoopWiring
from diloco.learner.link import Mailboxes
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.orders import EndKind, Orders
from diloco.learner.mailboxes.outbox import ControlOutbox
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullQueue
from diloco.learner.mailboxes.push_queue import PushQueue
from diloco.learner.mailboxes.requests import Requests
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.trainer import StepResult
from diloco.simulate.counted import CountedTrainer
from diloco.wire.messages import Applied, LearnerMessage

NOW = Membership("1", 7)
FRAGMENTS = 2


class Session:
    """Keeps what is sent."""

    backlog = 0

    def __init__(self) -> None:
        self.sent: list[LearnerMessage] = []

    def send(self, message: LearnerMessage) -> None:
        self.sent.append(message)


class Loop(CountedTrainer):
    """An inner loop around this trainer: its steps take the seconds that are given, and end the loop when there are
    no more."""

    def __init__(self, *steps: tuple[float, bool]) -> None:
        """``steps``: seconds, and whether the step changed nothing because something was not finite."""
        super().__init__(FRAGMENTS, batch_size=2, sequence_length=8)
        self.now = 0.0
        self.session = Session()
        self._left = list(steps)
        wakeup = Wakeup()
        self.boxes = Mailboxes(
            Orders(wakeup),
            Requests(wakeup, FRAGMENTS, 1),
            PullQueue(wakeup),
            PushQueue(),
            ControlOutbox(3600.0),
            Holdings(FRAGMENTS),
            feedback=None,
        )
        self.boxes.holdings.admitted(NOW, range(FRAGMENTS))
        self.boxes.control.session_begins(self.session, NOW)
        for fragment in range(FRAGMENTS):
            self.receive(fragment, 0)
        wiring = LoopWiring(self.boxes, wakeup, lambda: NOW, lambda: None, self._checkpoint)
        self.activity = Activity(lambda: self.now)
        self.loop = InnerLoop(cast("Any", self), wiring, LoopSettings(100, checkpoint_every_steps=2), self.activity)

    def receive(self, fragment: int, version: int) -> None:
        self.boxes.pull_queue.landed(MergedFragment(NOW, fragment, version, cast("Any", None)))

    def step(self, progress: float) -> StepResult:
        seconds, skipped = self._left.pop(0)
        self.now += seconds
        if not self._left:
            self.boxes.orders.stop("the test has seen enough")
        if skipped:
            return StepResult(float("nan"), 0, seconds, 0.0, {"AdamW": 0.0}, skipped=True)
        if self.steps == 1:
            self.receive(1, 1)
        super().step(progress)
        return StepResult(2.0, 16, seconds, 1.0, {"AdamW": 0.1}, skipped=False)

    def apply(self, fragment: int, version: int, values: Any) -> None:
        self.now += 0.5
        super().apply(fragment, version, values)

    def _checkpoint(self) -> None:
        self.now += 0.25


def test_every_second_is_reported_as_what_it_was() -> None:
    loop = Loop((1.0, False), (2.0, False), (4.0, True), (8.0, False))
    loop.now += 3.0
    assert loop.loop.run().kind is EndKind.STOPPED
    news = loop.loop.news
    assert news is not None
    assert (news.step, news.step_seconds) == (3, 8.0)
    # Two fragments were copied in while it loaded, which is copying, and a third between two steps.
    assert news.spent == TimeSpent(training=11.0, skipped=4.0, copying=1.5, checkpointing=0.25, loading=3.0)
    assert news.spent.wall_seconds == loop.now


def test_a_swap_in_is_told_with_the_step_after_which_it_was_made() -> None:
    loop = Loop((1.0, False), (2.0, False), (4.0, False))
    loop.loop.run()
    sender = threading.Thread(target=loop.boxes.control.run)
    sender.start()
    assert loop.boxes.control.flush(60.0)
    loop.boxes.control.close()
    sender.join()
    told = [said for said in loop.session.sent if isinstance(said, Applied)]
    # Of what waits to be said of a fragment, the newest is.
    assert [(said.fragment, said.version, said.step) for said in told] == [(0, 0, 0), (1, 1, 2)]
