"""Shares of work between two moments come from the engine's accounts of time."""

from typing import Any

import pytest

from diloco.plan.outcome import Outcome
from diloco.spec.status.engine import EngineStatus, LearnerStatus, Phase


def learner(name: str, tokens: int = 0, state: str = "Training", **seconds: float) -> LearnerStatus:
    return LearnerStatus(
        id=name,
        state=state,
        steps=0,
        tokens=tokens,
        merged_tokens=0.0,
        restarts=0,
        time_seconds=seconds,
        lead_steps=1,
        answer_seconds=0.5,
    )


def view(*learners: LearnerStatus, **changes: Any) -> EngineStatus:
    fields: dict[str, Any] = {
        "phase": Phase.TRAINING,
        "phase_reason": "",
        "syncer_step": 0,
        "merged_tokens": 0.0,
        "budget_tokens": 1,
        "eval_loss": None,
        "evaluations": (),
        "goodput": None,
        "merged": None,
        "elapsed_seconds": 0.0,
    }
    return EngineStatus(learners=learners, **(fields | changes))


def test_shares_are_of_the_work_settled_meanwhile() -> None:
    before = view(
        learner("a/p/0", 100, merged=50.0, pending=4.0),
        learner("a/p/1", merged=5.0, late=5.0),
        learner("b/p/0"),
        syncer_step=10,
        elapsed_seconds=60.0,
    )
    after = view(
        learner("a/p/0", 400, merged=120.0, overwritten=10.0, pending=4.0, waiting=20.0),
        learner("a/p/1", 100, merged=5.0, late=25.0),
        learner("b/p/0", 200, merged=30.0),
        syncer_step=34, elapsed_seconds=90.0, round_seconds=0.7, fragments_allowed=3,
    )  # fmt: skip
    found = Outcome.between(before, after)
    assert (found.seconds, found.merges, found.round_seconds, found.allowed) == (30.0, 24, 0.7, 3)
    first, second = found.pools
    assert (first.name, first.learners, first.tokens, first.lead_steps, first.answer_seconds) == ("a/p", 2, 400, 1, 0.5)
    assert (first.merged, first.overwritten, first.late) == (0.7, 0.1, 0.2)
    assert first.waiting == pytest.approx(20 / 120)
    assert (second.merged, second.tokens) == (1.0, 200)
    assert found.merged_share == pytest.approx((0.7 * 400 + 200) / 600)


def test_learners_that_came_went_or_made_nothing_do_not_count() -> None:
    before = view(learner("a/p/0", merged=1.0), learner("a/p/1"), learner("a/p/2", state="Loading"), learner("b/p/0"))
    after = view(
        learner("a/p/0", 10, merged=2.0),
        learner("a/p/1", 10, "Absent", lost=9.0),
        learner("a/p/2", 10, late=5.0),
        learner("a/p/3", 10, late=5.0),
        learner("b/p/0", 10, pending=5.0),
    )
    (pool,) = Outcome.between(before, after).pools
    assert (pool.name, pool.learners, pool.merged) == ("a/p", 1, 1.0)
    assert Outcome.between(before, before).merged_share is None


def test_what_was_late_and_is_merged_after_all_takes_nothing_from_others() -> None:
    before, after = view(learner("a/p/0", late=5.0)), view(learner("a/p/0", 10, late=3.0, merged=4.0))
    (pool,) = Outcome.between(before, after).pools
    assert (pool.merged, pool.late) == (1.0, 0.0)
