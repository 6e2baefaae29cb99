"""What each of the engine's actions does to sessions, pushes, pulls and the log."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from diloco.core.engine import actions
from diloco.core.engine.actions import Refusal
from diloco.core.engine.events import LearnerJoined, LearnerLeft
from diloco.syncer.peers.inbox import PushRefusedError
from diloco.wire import messages
from diloco.wire.errors import RefusedError
from diloco.wire.messages import PushKey
from tests.support.syncer_peers import BESIDE as B
from tests.support.syncer_peers import EPOCH, settle
from tests.support.syncer_peers import WHO as A
from tests.unit.syncer.executor_scene import Scene, push_of

KEY = PushKey(A, 1, 0, 1, 1)
PROGRESS = messages.Progress(128, 1000, 3)


def ask_of(key: PushKey) -> actions.AskFragment:
    return actions.AskFragment(key.learner, key.incarnation, key.fragment, key.version, key.attempt, "due")


def is_wanted(on: Scene, key: PushKey) -> bool:
    try:
        on.inbox.open(push_of(key), lambda: None)
    except PushRefusedError:
        return False
    on.inbox.abandon(key)
    return True


async def test_an_admitted_process_is_welcomed_with_the_jobs_progress(on: Scene) -> None:
    joined = await on.join(A)
    assert await on.told(LearnerJoined) == LearnerJoined(A, "process", (), 0, 0)
    on.order(actions.Admit(A, "process", 7, (1, 0), (4, 5), 12, 48, 10, 640, "it is planned", counted_in=(0, 5)))
    welcome = messages.Welcome(7, EPOCH, (1, 0), (4, 5), 12, 48, PROGRESS, connections=8, counted_in=(0, 5))
    assert joined.told == [welcome]
    assert on.sessions.current(A, 7)


async def test_a_process_that_is_not_admitted_is_told_why(on: Scene) -> None:
    joined = await on.join(A)
    on.order(actions.Refuse(A, "process", Refusal.GIVEN_UP, "it failed too often"))
    assert joined.told == [messages.Refused("GivenUp", "it failed too often")]


async def test_a_learner_is_asked_and_its_push_is_expected(on: Scene) -> None:
    joined = await on.admitted(A, 1)
    assert not is_wanted(on, KEY)
    on.order(ask_of(KEY))
    assert joined.told == [messages.FragmentWanted(0, 1, 1)]
    assert is_wanted(on, KEY)


async def test_what_is_discarded_is_freed_and_the_decision_counted(on: Scene) -> None:
    on.arrived(KEY, 1.0)
    on.order(actions.Discard(*KEY, "it is too old"))
    assert on.inbox.held_bytes == 0
    assert on.count("diloco_decisions_total", kind="Discard", detail="") == 1


async def test_a_new_version_is_told_to_each_with_whether_its_own_is_in_it(on: Scene) -> None:
    one, other = await on.admitted(A, 1), await on.admitted(B, 2)
    on.order(actions.Broadcast(1, 4, ((A, 1, True), (B, 2, False), (B, 1, True)), "it is made"))
    assert one.told == [messages.FragmentReady(1, 4, True, PROGRESS)]  # noqa: FBT003  # the wire's message
    assert other.told == [messages.FragmentReady(1, 4, False, PROGRESS)]  # noqa: FBT003  # the same


async def test_an_evaluation_is_asked_of_the_learner_that_was_chosen(on: Scene) -> None:
    one, other = await on.admitted(A, 1), await on.admitted(B, 1)
    on.order(actions.Evaluate(B, 1, 9, 128, (4, 5), final=True, reason="the job ends"))
    assert (one.told, other.told) == ([], [messages.EvaluationWanted(9, (4, 5), final=True)])


async def test_the_end_of_the_job_is_told_to_the_syncer(on: Scene) -> None:
    end = actions.Finish(complete=True, reason="the budget is merged")
    on.order(end)
    assert on.ended == [end]


async def fenced(on: Scene) -> None:
    on.order(actions.Fence(A, 1, Refusal.LEASE_EXPIRED, "it was silent"))
    assert not on.sessions.current(A, 1)


async def hung_up(on: Scene) -> None:
    on.engine_loop.post(LearnerLeft(A, 1, clean=False))
    await on.told(LearnerLeft)


async def pull_of(on: Scene) -> "asyncio.Task[None]":
    """A learner that waits for a version."""
    await on.admitted(A, 1)
    pull = asyncio.ensure_future(on.posted.next_version(A, 1, 0))
    await settle()
    return pull


async def ends_without_a_session(pull: "asyncio.Task[None]") -> None:
    await settle()
    assert pull.done()
    with pytest.raises(RefusedError, match="has no session here"):
        pull.result()


@pytest.mark.parametrize("how", [fenced, hung_up])
async def test_of_a_session_that_is_over_no_push_is_expected_and_no_pull_waits(
    on: Scene, how: Callable[[Scene], Coroutine[Any, Any, None]]
) -> None:
    pull = await pull_of(on)
    other = KEY._replace(learner=B)
    on.order(ask_of(KEY), ask_of(other))
    await how(on)
    assert not is_wanted(on, KEY)
    assert is_wanted(on, other)
    await ends_without_a_session(pull)


async def test_of_a_session_that_another_process_has_taken_no_pull_waits(on: Scene) -> None:
    pull = await pull_of(on)
    await on.join(A, "another")
    on.order(actions.Admit(A, "another", 2, (), (0, 0), 0, 0, 0, 0, "it is planned"))
    await ends_without_a_session(pull)


@pytest.mark.parametrize(
    ("decision", "level"),
    [
        (actions.Refuse(A, "process", Refusal.GIVEN_UP, "why"), logging.INFO),
        (actions.Note(actions.NoteKind.LEARNER_STALLED, "why", A), logging.INFO),
        (actions.Note(actions.NoteKind.ROUND_OPENED, "why", fragment=0), logging.DEBUG),
        (actions.Discard(*KEY, "why"), logging.DEBUG),
    ],
    ids=["refusal", "of a learner", "of every round", "of every push"],
)
async def test_the_log_shows_decisions_but_those_of_every_round(
    on: Scene, caplog: pytest.LogCaptureFixture, decision: actions.Action, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, "diloco.syncer.action_executor"):
        on.order(decision)
    (record,) = [record for record in caplog.records if record.getMessage().endswith(": why")]
    assert record.levelno == level
