import pytest

from diloco.simulate.published.capacity import (
    LEARNERS,
    mixed,
    mixed_through_engine,
    scavenged,
    step_seconds,
    waiting_for_all,
)
from diloco.simulate.published.tables import MIXED, SCAVENGED


def test_two_generations_that_wait_for_one_another_compute_as_published() -> None:
    assert 100 * mixed(4000) == pytest.approx(MIXED, abs=1.0)


def test_equal_learners_wait_for_nobody() -> None:
    assert waiting_for_all((2.0,) * 8) == 1.0
    assert waiting_for_all((1.0, 3.0)) == pytest.approx(2 / 3)


def test_learners_are_drawn_from_the_seed_alone() -> None:
    assert len(step_seconds(0)) == LEARNERS
    assert step_seconds(0) == step_seconds(0)
    assert step_seconds(0) != step_seconds(1)


def test_the_engine_in_lock_step_waits_for_the_slowest() -> None:
    assert mixed_through_engine(0, 300.0) == pytest.approx(waiting_for_all(step_seconds(0)), abs=0.03)


def test_capacity_that_is_scavenged_saves_what_was_published() -> None:
    assert {added: scavenged(added) for added in SCAVENGED} == pytest.approx(SCAVENGED, abs=0.01)
    assert scavenged(0.0) == 1.0
