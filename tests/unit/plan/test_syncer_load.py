from dataclasses import replace
from typing import Any

import pytest

from diloco.plan.situation import Exchange, LearnerGroup, Link, Situation
from diloco.plan.syncer_load import MERGE_BYTES_PER_SECOND, WIRE_BYTES_PER_SECOND, syncer_load

NUMELS = (10**9 // 24,) * 24


def situation(*, step_seconds: float | None = None, learners: int = 8, **exchange: Any) -> Situation:
    plain = Exchange(NUMELS, 24, None, None, 1, "BF16", "F32")
    group = LearnerGroup("here/a", learners, Link("here"), step_seconds)
    return Situation(replace(plain, **exchange), (group,))


def test_it_says_what_it_moves_and_computes() -> None:
    load = syncer_load(situation(step_seconds=2.0))
    parameters_per_second = sum(NUMELS) * 8 / 24 / 2
    assert load.received_bytes_per_second == pytest.approx(2 * parameters_per_second)
    assert load.sent_bytes_per_second == pytest.approx(4 * parameters_per_second)
    cores = 6 * parameters_per_second / WIRE_BYTES_PER_SECOND + 2 * 4 * parameters_per_second / MERGE_BYTES_PER_SECOND
    assert load.cores == pytest.approx(cores)
    assert load.enough


def test_without_step_times_it_says_from_which_on() -> None:
    load = syncer_load(situation())
    assert (load.received_bytes_per_second, load.sent_bytes_per_second, load.cores) == (None, None, None)
    assert [(one.compression, one.downlink) for one in load.limits] == [("BF16", "F32"), ("Int4", "Int8")]
    own, narrowest = (sum(NUMELS) * 8 / one.step_seconds for one in load.limits)
    assert own == pytest.approx(8e9)
    assert narrowest == pytest.approx(3.12e10, rel=0.01)  # with the scales of groups


def test_shorter_steps_than_it_carries_are_too_short() -> None:
    (least, _) = syncer_load(situation()).limits
    assert syncer_load(situation(step_seconds=1.01 * least.step_seconds)).enough
    assert not syncer_load(situation(step_seconds=0.99 * least.step_seconds)).enough


def test_its_own_link_may_carry_less() -> None:
    narrow = replace(situation(), syncer=Link("of the syncer", 1e8, 1e8))
    (own, narrowest) = syncer_load(narrow).limits
    assert own.step_seconds == pytest.approx(4 * sum(NUMELS) * 8 / 24 / 1e8 / 0.95)
    assert narrowest.step_seconds == pytest.approx(own.step_seconds / 4, rel=0.02)


def test_what_is_narrowest_already_has_one_limit() -> None:
    (only,) = syncer_load(situation(compression="Int4", downlink="Int8")).limits
    assert only.step_seconds == syncer_load(situation()).limits[1].step_seconds
    limits = syncer_load(situation(compression="TopK")).limits
    assert [(one.compression, one.downlink) for one in limits] == [("TopK", "F32"), ("TopK", "Int8")]
    assert len(syncer_load(situation(compression="TopK", downlink="TopK")).limits) == 1
    assert limits[1].step_seconds < only.step_seconds
