"""The link: how it handles the syncer's messages and broken connections. Sessions are scripted."""

import asyncio
from dataclasses import replace

import pytest
import torch

from diloco.learner.exchange.holdings import MergedFragment
from diloco.learner.exchange.link import Position
from diloco.learner.exchange.orders import EndKind, EvaluationOrder, Membership
from diloco.learner.exchange.requests import GradientRequest, OuterGradient
from diloco.learner.training.capture import Capture
from diloco.wire.errors import IdentityError, TooLargeError, UnavailableError, WireError
from diloco.wire.messages import (
    EvaluationWanted,
    FragmentReady,
    FragmentWanted,
    Join,
    LearnerMessage,
    Leave,
    Progress,
    Ready,
    Refused,
    SyncerMessage,
    Welcome,
)
from tests.support.scripted_link import NO_PROGRESS, OVER, Bench, Script, welcome

NOW = Membership("1", 1)
OF_THREE_FRAGMENTS = Welcome(1, "1", (), (0, 0, 0), 0, 0, NO_PROGRESS)


def test_it_joins_with_who_it_is_and_how_far_and_says_good_bye() -> None:
    session = Script(welcome(4), OVER)
    bench = Bench(session)
    assert bench.run() == (EndKind.FINISHED, "enough")
    assert session.sent == [Ready(4), Leave(4, "the job is over")]
    assert bench.joins == [Join("job", "r/p/0", "abc", "digest", steps=5, data_position=40)]
    assert bench.link.welcome_position == Position(9, 72)
    assert bench.link.current() is None


def test_what_is_to_be_loaded_is_wanted_first_and_in_order() -> None:
    bench = Bench(Script(welcome(load=(1, 0)), OVER))
    wanted = bench.listen("pulls.want")
    bench.run()
    assert wanted[:2] == [("pulls.want", 1, 4, True), ("pulls.want", 0, 3, True)]


def test_a_job_ends_also_on_a_connection_that_takes_nothing() -> None:
    class Full(Script):
        async def send(self, message: LearnerMessage) -> None:
            if isinstance(message, Leave):
                await asyncio.get_running_loop().create_future()
            await super().send(message)

    bench = Bench(Full(welcome(), OVER))
    assert bench.run() == (EndKind.FINISHED, "enough")


def test_it_rejoins_with_what_it_holds_when_the_connection_breaks() -> None:
    bench = Bench(UnavailableError("nobody there"), Script(welcome(), UnavailableError("broken")), Script(OVER))
    bench.shared.holdings.admitted(NOW, [])
    bench.shared.holdings.received(MergedFragment("1", 0, 3, torch.zeros(1)))
    bench.shared.holdings.received(MergedFragment("1", 1, 4, torch.zeros(1)))
    assert bench.run() == (EndKind.FINISHED, "enough")
    assert [(join.epoch, join.versions) for join in bench.joins] == [("1", (3, 4))] * 3


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (Refused("Superseded", "another process"), EndKind.REFUSED, "Superseded: another process"),
        (Refused("GivenUp", "too often"), EndKind.REFUSED, "GivenUp: too often"),
        (Refused("Finished", "complete"), EndKind.FINISHED, "Finished: complete"),
        (Refused("Stuck", "no step"), EndKind.STUCK, "Stuck: no step"),
        # Errors that would come again.
        (IdentityError("the certificate is another's"), EndKind.REFUSED, "the certificate is another's"),
        (OF_THREE_FRAGMENTS, EndKind.REFUSED, "the syncer's model has 3 fragments, this learner's has 2"),
        (welcome(load=(2,)), EndKind.REFUSED, "the syncer speaks of fragment 2; there are 2"),
    ],
)
def test_an_answer_to_the_join_that_ends_it(said: SyncerMessage | WireError, kind: EndKind, why: str) -> None:
    bench = Bench(Script(said))
    assert bench.run() == (kind, why)
    assert len(bench.joins) == 1


def test_a_learner_waits_until_the_syncer_knows_its_new_pool() -> None:
    bench = Bench(Script(Refused("UnknownLearner", "the job has no such learner")), Script(welcome(), OVER))
    assert bench.run() == (EndKind.FINISHED, "enough")
    assert len(bench.joins) == 2


@pytest.mark.parametrize(
    "end", [Refused("LeaseExpired", "why"), Refused("Reset", "why"), TooLargeError("the queue is full")]
)
def test_an_end_of_a_session_that_worked_is_a_reason_to_join_again(end: SyncerMessage | WireError) -> None:
    bench = Bench(Script(welcome(), end), Script(welcome(2), OVER))
    assert bench.run()[0] is EndKind.FINISHED
    assert bench.link.sessions == len(bench.joins) == 2


def test_the_inner_loop_starts_over_when_the_welcome_says_so() -> None:
    plain, reset = Bench(Script(welcome(), OVER)), Bench(Script(replace(welcome(load=(0, 1)), reset=True), OVER))
    for bench, told in ((plain, ""), (reset, "the syncer says that this learner has diverged")):
        bench.run()
        assert bench.shared.orders.take_start_over() == told
        assert not bench.shared.orders.take_start_over(), "once"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [("a", "b", "the syncer has begun another training"), ("a", "a", ""), ("", "b", ""), ("a", "", "")],
)
def test_the_inner_loop_starts_over_when_the_training_is_another(before: str, after: str, why: str) -> None:
    lost = Refused("LeaseExpired", "why")
    bench = Bench(Script(replace(welcome(), training=before), lost), Script(replace(welcome(2), training=after), OVER))
    bench.run()
    assert bench.link.training == after
    assert bench.shared.orders.take_start_over() == why


def test_orders_carry_the_admission_they_came_with_and_end_with_it() -> None:
    asked: list[GradientRequest] = []
    bench = Bench(Script(welcome(4), FragmentWanted(1, 5, 2), EvaluationWanted(0, (3, 4), final=False)), Script(OVER))
    bench.shared.requests.put = asked.append  # type: ignore[method-assign, assignment]  # before the session's end forgets it
    bench.run()
    assert asked == [GradientRequest(Membership("1", 4), 1, 5, 2)]
    assert bench.shared.orders.take_evaluation() is None


@pytest.mark.parametrize(
    "says",
    [
        (welcome(), FragmentWanted(2, 1, 1)),
        (welcome(), FragmentReady(2, 1, merged=True, progress=NO_PROGRESS)),
        (FragmentWanted(0, 1, 1),),
        (welcome(7), welcome(8), FragmentWanted(0, 1, 1)),
    ],
    ids=["wanted", "ready", "before the welcome", "two welcomes"],
)
def test_an_order_that_cannot_be_breaks_the_session(says: tuple[SyncerMessage, ...]) -> None:
    bench = Bench(Script(*says, OVER), Script(OVER))
    heard = bench.listen("requests.put")
    assert bench.run()[0] is EndKind.FINISHED
    assert (len(bench.joins), heard) == (2, [])


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
    assert bench.shared.orders.progress == 0.3


def test_a_welcome_settles_what_was_made_without_a_session() -> None:
    bench = Bench(Script(replace(welcome(), counted_in=(3, 0)), OVER))
    heard = bench.listen("feedback.session_begins")
    bench.run()
    assert heard == [("feedback.session_begins", "1", (3, 4), (3, 0))]


@pytest.mark.parametrize(("load", "sent"), [((0,), []), ((), [Ready(1)])], ids=["to load", "nothing to load"])
def test_a_welcome_begins_transfers_and_is_answered_if_all_is_held(
    load: tuple[int, ...], sent: list[LearnerMessage]
) -> None:
    session = Script(welcomed := Welcome(1, "1", load, (3, 4), 0, 0, NO_PROGRESS), NO_PROGRESS, NO_PROGRESS, OVER)
    bench = Bench(session)
    heard = bench.listen("outbox.session_begins", "pulls.session_begins", "pushes.session_begins")
    bench.run()
    assert heard == [(f"{name}.session_begins", NOW) for name in ("outbox", "pulls", "pushes")]
    assert (bench.terms, session.sent) == ([welcomed], [*sent, Leave(1, "the job is over")])


@pytest.mark.parametrize("merged", [True, False])
def test_a_notice_settles_what_was_sent_and_has_the_fragment_pulled(*, merged: bool) -> None:
    bench = Bench(Script(welcome(), FragmentReady(1, 5, merged, NO_PROGRESS), OVER))
    bench.shared.holdings.admitted(NOW, [])
    bench.shared.holdings.received(MergedFragment("1", 0, 3, torch.zeros(1)))
    bench.shared.holdings.received(MergedFragment("1", 1, 4, torch.zeros(1)))
    heard = bench.listen("requests.not_merged", "feedback.outcome", "pulls.want")
    bench.run()
    settled = [] if merged else [("requests.not_merged", 1, 5)]
    wanted = [("pulls.want", 0, 3, False), ("pulls.want", 1, 4, False), ("pulls.want", 1, 5, False)]
    assert heard == [*wanted[:2], *settled, ("feedback.outcome", 1, 5, merged), wanted[2]]


def test_without_error_feedback_nothing_is_missing() -> None:
    bench = Bench(Script(welcome(), FragmentReady(1, 5, merged=True, progress=NO_PROGRESS), OVER))
    bench.link._shared = replace(bench.shared, feedback=None)
    assert bench.run() == (EndKind.FINISHED, "enough")


@pytest.mark.parametrize(("final", "orders"), [(False, []), (True, [(0, 9), (1, 8)])])
def test_a_final_evaluation_has_its_versions_pulled(orders: list[tuple[int, int]], *, final: bool) -> None:
    wanted = EvaluationWanted(2, (9, 8), final)
    bench = Bench(Script(welcome(), wanted, OVER))
    heard = bench.listen("orders.evaluate", "pulls.want")
    bench.run()
    assert heard[2:] == [
        ("orders.evaluate", EvaluationOrder(NOW, wanted)),
        *(("pulls.want", fragment, version, False) for fragment, version in orders),
    ]


@pytest.mark.parametrize("staged", [True, False])
def test_a_request_whose_answer_is_staged_is_answered_at_once(*, staged: bool) -> None:
    capture = Capture(1, 4, 1, 1, torch.zeros(1), torch.zeros(1), None)
    session = Script(welcome(), FragmentWanted(1, 5, 2), OVER)
    bench = Bench(session)
    bench.shared.requests.stage([capture] * staged)
    heard = bench.listen("pushes.offer")
    bench.run()
    answer = OuterGradient(GradientRequest(NOW, 1, 5, 2), capture)
    assert heard == [("pushes.offer", answer)] * staged


def test_the_end_of_a_session_is_told_to_all_who_serve_it() -> None:
    bench = Bench(Script(welcome(), OVER))
    names = [f"{name}.session_over" for name in ("outbox", "requests", "orders", "pulls", "pushes")]
    heard = bench.listen(*names)
    bench.run()
    assert heard == [(name,) for name in names]


@pytest.mark.parametrize(
    ("answers", "goes_on"),
    [
        ([NO_PROGRESS, welcome(4)], True),
        ([Refused("Superseded", "another process has joined")], True),
        ([Refused("Finished", "the job is over")], False),
        ([UnavailableError("nobody there")], False),
        ([], False),
    ],
)
def test_one_that_stays_asks_by_joining_and_leaves(answers: list[SyncerMessage | WireError], *, goes_on: bool) -> None:
    session = Script(*answers)
    bench = Bench(session)
    assert bench.loop.result_of(bench.link.goes_on(bench)) is goes_on
    left = [Leave(4, "the job goes on; the next process trains")]
    assert (session.sent, session.closed) == (left if welcome(4) in answers else [], 1)
    assert bench.link.current() is None
