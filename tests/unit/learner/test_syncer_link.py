"""The link: how it handles the syncer's messages and broken connections. Sessions are scripted."""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from diloco.learner.mailboxes.held_orders import HeldOrder
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.orders import EndKind, EvaluationOrder, Orders
from diloco.learner.mailboxes.outbox import ControlOutbox
from diloco.learner.mailboxes.pull_queue import PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest, Requests
from diloco.learner.mailboxes.residuals import Residuals
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.syncer_link import Identity, Link, Mailboxes, Position
from diloco.learner.training.capture import Capture
from diloco.wire.errors import IdentityError, RevokedError, TooLargeError, UnavailableError, WireError
from diloco.wire.messages import (
    Declined,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    HeldWanted,
    Join,
    LearnerMessage,
    Leave,
    Progress,
    Refused,
    SyncerMessage,
    Welcome,
)
from tests.support.hand_clock import HandClock

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
        identity = Identity("job", "r/p/0", "abc", "digest")
        self.link = Link(identity, self._open, self.boxes, lambda: Position(5, 40), lambda: uniform)

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


def test_it_joins_with_who_it_is_and_how_far() -> None:
    bench = Bench(Script(welcome(), OVER))
    assert bench.run() == (EndKind.FINISHED, "enough")
    assert bench.joins == [Join("job", "r/p/0", "abc", "digest", steps=5, data_position=40, heals=True)]
    assert bench.link.welcome_position == Position(9, 72)
    assert bench.link.current() is None


def test_what_is_to_be_loaded_is_wished_for_first_and_in_order() -> None:
    wished: list[PullOrder] = []
    bench = Bench(Script(welcome(load=(1, 0)), OVER))
    bench.boxes.pull_queue.want = wished.append  # type: ignore[method-assign, assignment]  # before the session's end forgets them
    bench.run()
    now = Membership("1", 1)
    assert wished[:2] == [PullOrder(now, 1, 4, load=True), PullOrder(now, 0, 3, load=True)]


def test_it_rejoins_with_what_it_holds_when_the_connection_breaks() -> None:
    bench = Bench(UnavailableError("nobody there"), Script(welcome(), UnavailableError("broken")), Script(OVER))
    bench.boxes.holdings.admitted(Membership("1", 1), [])
    bench.boxes.holdings.received("1", 0, 3)
    bench.boxes.holdings.received("1", 1, 4)
    assert bench.run() == (EndKind.FINISHED, "enough")
    assert [(join.epoch, join.versions) for join in bench.joins] == [("1", (3, 4))] * 3


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Refused("Superseded", "another process"), EndKind.REFUSED),
        (Refused("UnknownLearner", "no such learner"), EndKind.REFUSED),
        (Refused("GivenUp", "too often"), EndKind.REFUSED),
        (Refused("Finished", "complete"), EndKind.FINISHED),
        (Refused("Stuck", "no step"), EndKind.STUCK),
    ],
)
def test_a_refusal_ends_it(said: Refused, kind: EndKind) -> None:
    bench = Bench(Script(said))
    assert bench.run() == (kind, f"{said.refusal}: {said.reason}")
    assert len(bench.joins) == 1


@pytest.mark.parametrize("refusal", ["LeaseExpired", "Reset"])
def test_an_expired_lease_or_a_reset_is_a_reason_to_join_again(refusal: str) -> None:
    bench = Bench(Script(welcome(), Refused(refusal, "why")), Script(welcome(2), OVER))
    assert bench.run()[0] is EndKind.FINISHED
    assert bench.link.sessions == 2


def test_the_inner_loop_starts_over_when_the_welcome_says_so() -> None:
    plain, reset = Bench(Script(welcome(), OVER)), Bench(Script(replace(welcome(load=(0, 1)), reset=True), OVER))
    for bench, told in ((plain, ""), (reset, "the syncer says that this learner has diverged")):
        bench.run()
        assert bench.boxes.orders.take_start_over() == told
        assert not bench.boxes.orders.take_start_over(), "once"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [("a", "b", "the syncer has begun another training"), ("a", "a", ""), ("", "b", ""), ("a", "", "")],
)
def test_the_inner_loop_starts_over_when_the_training_is_another(before: str, after: str, why: str) -> None:
    lost = Refused("LeaseExpired", "why")
    bench = Bench(Script(replace(welcome(), training=before), lost), Script(replace(welcome(2), training=after), OVER))
    bench.run()
    assert bench.link.training == after
    assert bench.boxes.orders.take_start_over() == why


def test_an_error_that_would_come_again_ends_it_before_it_was_let_in() -> None:
    bench = Bench(Script(IdentityError("the certificate is another learner's")))
    assert bench.run() == (EndKind.REFUSED, "the certificate is another learner's")


def test_the_same_error_on_a_session_that_worked_is_a_reason_to_join_again() -> None:
    bench = Bench(Script(welcome(), TooLargeError("the queue is full")), Script(OVER))
    assert bench.run()[0] is EndKind.FINISHED
    assert len(bench.joins) == 2


def test_orders_before_a_welcome_break_the_session() -> None:
    bench = Bench(Script(FragmentWanted(0, 1, 1)), Script(OVER))
    assert bench.run()[0] is EndKind.FINISHED
    assert bench.boxes.requests.take() == []


def test_orders_carry_the_admission_they_came_with_and_end_with_it() -> None:
    asked: list[GradientRequest] = []
    bench = Bench(Script(welcome(4), FragmentWanted(1, 5, 2), EvaluationWanted(0, (3, 4), final=False)), Script(OVER))
    bench.boxes.requests.put = asked.append  # type: ignore[method-assign, assignment]  # before the session's end forgets it
    bench.run()
    assert asked == [GradientRequest(Membership("1", 4), 1, 5, 2)]
    assert bench.boxes.orders.take_evaluation() is None


def test_it_says_good_bye_when_the_job_is_over() -> None:
    session = Script(welcome(4), OVER)
    Bench(session).run()
    assert session.sent == [Leave(4, "the job is over")]


def test_a_syncer_with_another_model_is_none_for_this_learner() -> None:
    bench = Bench(Script(Welcome(1, "1", (), (0, 0, 0), 0, 0, NO_PROGRESS)))
    assert bench.run() == (EndKind.REFUSED, "the syncer's model has 3 fragments, this learner's has 2")


def test_a_syncer_that_names_an_unknown_fragment_to_load_is_refused() -> None:
    assert Bench(Script(welcome(load=(2,)))).run() == (EndKind.REFUSED, "the syncer speaks of fragment 2; there are 2")


@pytest.mark.parametrize("order", [FragmentWanted(2, 1, 1), FragmentReady(2, 1, merged=True, progress=NO_PROGRESS)])
def test_a_fragment_that_is_not_there_breaks_the_session(order: SyncerMessage) -> None:
    bench = Bench(Script(welcome(), order, OVER), Script(OVER))
    assert bench.run()[0] is EndKind.FINISHED
    assert len(bench.joins) == 2


@pytest.mark.parametrize(
    "says",
    [
        (welcome(progress=Progress(30, 100, 3)),),
        (welcome(), FragmentReady(0, 4, merged=True, progress=Progress(30, 100, 3))),
        (welcome(), Progress(30, 100, 3)),
    ],
)
def test_progress_is_taken_from_whatever_carries_it(says: tuple[SyncerMessage, ...]) -> None:
    bench = Bench(Script(*says, OVER))
    bench.run()
    assert bench.boxes.orders.progress == 0.3


@pytest.mark.parametrize(("load", "ready"), [((0,), False), ((), True)])
def test_a_welcome_opens_the_mailboxes_and_is_answered_if_nothing_to_load(
    load: tuple[int, ...], *, ready: bool
) -> None:
    session = Script(Welcome(1, "1", load, (3, 4), 0, 0, NO_PROGRESS, posted_pulls=True), OVER)
    bench, now = Bench(session), Membership("1", 1)
    heard = bench.listen("control.session_begins", "pull_queue.session_begins", "control.ready", "control.post")
    bench.run()
    begins: list[tuple[object, ...]] = [
        ("control.session_begins", session, now),
        ("pull_queue.session_begins", now, True),
    ]
    assert heard == begins + [("control.ready", now), ("control.post",)] * ready


@pytest.mark.parametrize("merged", [True, False])
def test_a_notice_settles_what_was_sent_and_has_the_fragment_pulled(*, merged: bool) -> None:
    bench = Bench(Script(welcome(), FragmentReady(1, 5, merged, NO_PROGRESS), OVER))
    now = Membership("1", 1)
    bench.boxes.holdings.admitted(now, [])
    bench.boxes.holdings.received("1", 0, 3)
    bench.boxes.holdings.received("1", 1, 4)
    heard = bench.listen("requests.not_merged", "feedback.outcome", "pull_queue.want")
    bench.run()
    settled = [] if merged else [("requests.not_merged", 1, 5)]
    assert heard == [*settled, ("feedback.outcome", 1, 5, merged), ("pull_queue.want", PullOrder(now, 1, 5))]


def test_without_error_feedback_nothing_is_missing() -> None:
    bench = Bench(Script(welcome(), FragmentReady(1, 5, merged=True, progress=NO_PROGRESS), OVER))
    bench.link._boxes = replace(bench.boxes, feedback=None)
    assert bench.run() == (EndKind.FINISHED, "enough")


@pytest.mark.parametrize(("final", "orders"), [(False, []), (True, [(0, 9), (1, 8)])])
def test_a_final_evaluation_has_its_versions_pulled(orders: list[tuple[int, int]], *, final: bool) -> None:
    wanted = EvaluationWanted(2, (9, 8), final)
    bench = Bench(Script(welcome(), wanted, OVER))
    heard = bench.listen("orders.evaluate", "pull_queue.want")
    bench.run()
    now = Membership("1", 1)
    assert heard[2:] == [
        ("orders.evaluate", EvaluationOrder(now, wanted)),
        *(("pull_queue.want", PullOrder(now, fragment, version)) for fragment, version in orders),
    ]


@pytest.mark.parametrize("staged", [True, False])
def test_a_request_whose_answer_is_staged_is_answered_at_once(*, staged: bool) -> None:
    capture = Capture(1, 4, 1, 1, torch.zeros(1), torch.zeros(1), None)
    session = Script(welcome(), FragmentWanted(1, 5, 2), OVER)
    bench = Bench(session)
    bench.boxes.requests.stage([capture] * staged)
    heard = bench.listen("push_queue.offer")
    bench.run()
    answer = OuterGradient(GradientRequest(Membership("1", 1), 1, 5, 2), capture)
    assert heard == [("push_queue.offer", answer)] * staged


def test_the_end_of_a_session_is_told_to_every_mailbox() -> None:
    bench = Bench(Script(welcome(), OVER))
    mailboxes = ("control", "requests", "pull_queue", "push_queue", "orders", "feedback")
    names = [f"{name}.session_over" for name in mailboxes]
    heard = bench.listen(*names)
    bench.run()
    assert heard == [(name,) for name in names]


def test_the_delay_before_it_joins_again_doubles_until_it_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = UnavailableError("nobody there")
    bench = Bench(broken, broken, broken, Script(welcome()), broken, Script(OVER), uniform=1.0)
    delays: list[float] = []
    monkeypatch.setattr(bench.link._closed, "wait", delays.append)
    bench.run()
    assert delays == [0.25, 0.5, 1.0, 0.25, 0.5]


def test_it_tells_once_that_the_syncer_is_lost_and_how_long_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "diloco.learner.syncer_link")
    clock, broken = HandClock(), UnavailableError("nobody there")
    monkeypatch.setattr("diloco.learner.syncer_link.time", SimpleNamespace(monotonic=clock))
    sessions = [Script(welcome(7, load=(1,))), Script(welcome(8)), Script(welcome(9), OVER)]
    bench = Bench(broken, broken, *sessions)
    opens = bench._open

    def opens_later(join: Join) -> Script:
        clock.now += 1.5
        return opens(join)

    bench.link._open_session = opens_later
    bench.run()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (nobody there); retrying",
        "still no syncer: nobody there",
        "joined after 3.0 s as incarnation 7 of epoch 1; 1 of 2 fragments to load",
        "lost the syncer (the syncer ended the session); retrying",
        "rejoined after 1.5 s as incarnation 8 of epoch 1; 0 of 2 fragments to load",
        "lost the syncer (the syncer ended the session); retrying",
        "rejoined after 1.5 s as incarnation 9 of epoch 1; 0 of 2 fragments to load",
    ]


def test_closing_ends_the_session_that_lasts_and_none_that_is_over() -> None:
    seen: list[int] = []

    class Closed(Script):
        def __iter__(self) -> Iterator[SyncerMessage]:
            yield welcome()
            bench.link.close()
            seen.append(self.closed)

    first, second = Script(welcome()), Closed()
    bench = Bench(first, second)
    bench.link.run()
    bench.link.close()
    assert seen == [1]
    assert (first.closed, second.closed) == (1, 2)


def test_a_learner_that_is_leaving_does_not_rejoin_when_its_session_ends() -> None:
    class LastSession(Script):
        def __iter__(self) -> Iterator[SyncerMessage]:
            yield from super().__iter__()
            bench.link.stop_rejoining()

    bench = Bench(LastSession(welcome()))
    bench.link.run()
    assert len(bench.joins) == 1
    assert bench.boxes.orders.ending() is None


def test_a_closed_link_opens_no_session() -> None:
    bench = Bench()
    bench.link.close()
    bench.link.run()
    assert bench.joins == []


def test_what_stands_in_the_way_is_said_once_and_again_when_it_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    monkeypatch.setattr("diloco.learner.syncer_link.time.monotonic", clock)
    away = [UnavailableError("gRPC's own words") for _ in range(5)]
    bench = Bench(*away, Script(welcome(), OVER))
    found = iter(["nothing listens there", "nothing listens there", "shows another job's certificate"])

    def look() -> str:
        clock.now += 20.0
        return next(found, "shows another job's certificate")

    bench.link.why_unreachable = look
    bench.run()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (nothing listens there); retrying",
        "cannot reach the syncer yet (shows another job's certificate); retrying",
    ]


def test_a_revoked_certificate_is_waited_out_and_needs_no_explanation(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Script(RevokedError("the certificate of pool r/p has been revoked")), Script(welcome(), OVER))
    bench.link.why_unreachable = lambda: pytest.fail("a connection came about")
    assert bench.run()[0] is EndKind.FINISHED
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (the certificate of pool r/p has been revoked); retrying"
    ]


def test_it_says_what_it_can_send_even_of_a_model_that_is_not_complete() -> None:
    bench = Bench(Script(OVER))
    bench.boxes.holdings.admitted(Membership("1.ab", 1), [0, 1])
    bench.boxes.holdings.received("1.ab", 1, 0, torch.ones(2))
    bench.run()
    (join,) = bench.joins
    assert (join.epoch, join.versions) == ("", ())
    assert (join.held_epoch, join.held) == ("1.ab", (0, 1))


def test_what_a_restarted_syncer_lacks_is_ordered_for_its_session() -> None:
    session = Script(HeldWanted(1, 7, 3))
    bench = Bench(session, Script(OVER))
    heard = bench.listen("held_orders.put", "held_orders.session_over")
    bench.run()
    (_, order), over, *_ = heard
    assert isinstance(order, HeldOrder)
    assert order.wanted == HeldWanted(1, 7, 3)
    assert over == ("held_orders.session_over",)
    order.decline(Declined(0, 1, 7, 3))
    assert session.sent == [Declined(0, 1, 7, 3)]
    assert len(bench.joins) == 2


def test_a_syncer_that_lacks_a_fragment_that_there_is_not_is_left() -> None:
    bench = Bench(Script(HeldWanted(2, 7, 3)), Script(OVER))
    heard = bench.listen("held_orders.put")
    bench.run()
    assert heard == []
