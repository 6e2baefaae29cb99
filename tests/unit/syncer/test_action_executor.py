"""What each of the engine's actions does to sessions, pushes, pulls and the log."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from diloco.core import actions
from diloco.core.actions import Refusal
from diloco.core.events import LearnerJoined, LearnerLeft
from diloco.syncer.peers.inbox import PushClaim, PushKey, PushRefusedError
from diloco.wire import messages
from diloco.wire.errors import RefusedError
from tests.unit.syncer.executor_scene import LEARNERS, Scene, numel_of, scene, turns

A, B = LEARNERS
KEY = PushKey(A, 1, 0, 1, 1)
PROGRESS = messages.Progress(128, 1000, 3)


def play(folder: Path, what: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        async with scene(folder) as on:
            await what(on)
            assert not on.engine_loop.failed.done()

    asyncio.run(played())


def ask_of(key: PushKey) -> actions.AskFragment:
    return actions.AskFragment(key.learner, key.incarnation, key.fragment, key.version, key.attempt, "due")


def is_wanted(on: Scene, key: PushKey) -> bool:
    try:
        on.inbox.open(key, PushClaim(key.version - 1, "None", 4 * numel_of(key.fragment)), lambda: None)
    except PushRefusedError:
        return False
    on.inbox.abandon(key)
    return True


def test_an_admitted_process_is_welcomed_with_the_jobs_progress(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        await on.joining(A)
        assert await on.told(LearnerJoined) == LearnerJoined(A, "process", (), 0, 0)
        on.order(actions.Admit(A, "process", 7, (1, 0), (4, 5), 12, 48, "it is planned"))
        assert on.sent[A] == [
            messages.Welcome(7, "1", (1, 0), (4, 5), 12, 48, PROGRESS, posted_pulls=True, connections=8)
        ]
        assert on.sessions.current(A, 7)

    play(tmp_path, happens)


def test_a_process_that_is_not_admitted_is_told_why(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        await on.joining(A)
        on.order(actions.Refuse(A, "process", Refusal.GIVEN_UP, "it failed too often"))
        assert on.sent[A] == [messages.Refused("GivenUp", "it failed too often")]
        assert on.sessions.admitted == 0

    play(tmp_path, happens)


def test_a_learner_is_asked_and_its_push_is_expected(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        await on.joined(A)
        assert not is_wanted(on, KEY)
        on.order(ask_of(KEY))
        assert on.sent[A] == [messages.FragmentWanted(0, 1, 1)]
        assert is_wanted(on, KEY)

    play(tmp_path, happens)


def test_what_is_discarded_is_freed(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        on.arrived(KEY, 1.0)
        on.order(actions.Discard(*KEY, "it is too old"))
        assert on.inbox.held_bytes == 0

    play(tmp_path, happens)


def test_a_new_version_is_told_to_each_with_whether_its_own_is_in_it(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        await on.joined(A)
        await on.joined(B, 2)
        on.order(actions.Broadcast(1, 4, ((A, 1, True), (B, 2, False), (B, 1, True)), "it is made"))
        assert on.sent[A] == [messages.FragmentReady(1, 4, True, PROGRESS)]  # noqa: FBT003  # the wire's message
        assert on.sent[B] == [messages.FragmentReady(1, 4, False, PROGRESS)]  # noqa: FBT003  # the same

    play(tmp_path, happens)


def test_an_evaluation_is_asked_of_the_learner_that_was_chosen(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        await on.joined(A)
        await on.joined(B)
        on.order(actions.Evaluate(B, 1, 9, 128, (4, 5), final=True, reason="the job ends"))
        assert on.sent == {A: [], B: [messages.EvaluationWanted(9, (4, 5), final=True)]}

    play(tmp_path, happens)


def test_the_end_of_the_job_is_told_to_the_syncer(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        end = actions.Finish(complete=True, reason="the budget is merged")
        on.order(end)
        assert on.over == [end]

    play(tmp_path, happens)


FENCE = actions.Fence(A, 1, Refusal.LEASE_EXPIRED, "it was silent")


async def fenced(on: Scene) -> None:
    on.order(FENCE)
    assert on.sent[A][-1] == messages.Refused("LeaseExpired", "it was silent")
    assert not on.sessions.current(A, 1)


async def hung_up(on: Scene) -> None:
    on.engine_loop.post(LearnerLeft(A, 1, clean=False))
    await on.told(LearnerLeft)


async def joined_anew(on: Scene) -> None:
    await on.joined(A, 2)


@pytest.mark.parametrize("how", [fenced, hung_up])
def test_of_a_session_that_is_over_no_push_is_expected(
    tmp_path: Path, how: Callable[[Scene], Coroutine[Any, Any, None]]
) -> None:
    async def happens(on: Scene) -> None:
        await on.joined(A)
        other = KEY._replace(learner=B)
        on.order(ask_of(KEY), ask_of(other))
        await how(on)
        assert not is_wanted(on, KEY)
        assert is_wanted(on, other)

    play(tmp_path, happens)


@pytest.mark.parametrize("how", [fenced, hung_up, joined_anew])
def test_of_a_session_that_is_over_no_pull_waits(
    tmp_path: Path, how: Callable[[Scene], Coroutine[Any, Any, None]]
) -> None:
    async def happens(on: Scene) -> None:
        await on.joined(A)
        pull = asyncio.ensure_future(on.posted.next_version(A, 1, 0))
        await turns()
        await how(on)
        await turns()
        assert pull.done()
        with pytest.raises(RefusedError, match="has no session here"):
            pull.result()

    play(tmp_path, happens)


def test_every_decision_is_counted(tmp_path: Path) -> None:
    async def happens(on: Scene) -> None:
        on.order(actions.Discard(*KEY, "it is too old"), actions.Note("LearnerStalled", "it makes no steps", A))
        count = on.metrics.registry.get_sample_value
        assert count("diloco_decisions_total", {"kind": "Discard", "detail": ""}) == 1
        assert count("diloco_decisions_total", {"kind": "Note", "detail": "LearnerStalled"}) == 1

    play(tmp_path, happens)


@pytest.mark.parametrize(
    ("decision", "level"),
    [
        (actions.Refuse(A, "process", Refusal.GIVEN_UP, "why"), logging.INFO),
        (actions.Note("LearnerStalled", "why", A), logging.INFO),
        (actions.Note("RoundOpened", "why", fragment=0), logging.DEBUG),
        (actions.Discard(*KEY, "why"), logging.DEBUG),
    ],
    ids=lambda value: getattr(value, "subject", type(value).__name__),
)
def test_the_log_shows_decisions_but_those_of_every_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decision: actions.Action, level: int
) -> None:
    async def happens(on: Scene) -> None:
        with caplog.at_level(logging.DEBUG, "diloco.syncer.action_executor"):
            on.order(decision)

    play(tmp_path, happens)
    (record,) = [record for record in caplog.records if record.getMessage().endswith(": why")]
    assert record.levelno == level
