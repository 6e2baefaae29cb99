"""Residuals of an encoding: which are kept, and which were never merged."""

import pytest
import torch

from diloco.learner.mailboxes.residuals import Residuals

BEFORE, SENT = torch.ones(3), torch.zeros(3)

OUTCOMES: dict[str, tuple[list[tuple[int, bool]], bool]] = {
    "none": ([], False),
    "merged": ([(5, True)], True),
    "not merged": ([(5, False)], False),
    "not merged, and told otherwise later": ([(5, False), (5, True)], False),
    "not merged, and the next version is": ([(5, False), (6, True)], False),
    "only of the version before": ([(4, True)], False),
    "of the version before and then merged": ([(4, True), (5, True)], True),
}
"""The outcomes reported after version 5 was sent, and whether its residual then counts."""


@pytest.mark.parametrize("before", [None, BEFORE], ids=["first", "later"])
@pytest.mark.parametrize(("outcomes", "counts"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_residual_counts_once_its_own_outer_gradient_is_merged(
    before: torch.Tensor | None, outcomes: list[tuple[int, bool]], *, counts: bool
) -> None:
    feedback = Residuals({} if before is None else {0: before})
    feedback.encoded(0, 5, SENT)
    for version, merged in outcomes:
        feedback.outcome(0, version, merged=merged)
    assert feedback.residual(0) is (SENT if counts else before)


@pytest.mark.parametrize(
    ("version", "counted_in", "told_later", "counts"),
    [(5, 5, False, True), (7, 5, False, True), (5, 4, True, False), (4, 4, True, True), (4, 4, False, False)],
    ids=["merged meanwhile", "and others since", "made without it", "merged afterwards", "made without it afterwards"],
)
def test_what_was_made_without_a_session_is_settled_at_the_next(
    version: int, counted_in: int, *, told_later: bool, counts: bool
) -> None:
    feedback = Residuals({0: BEFORE})
    feedback.session_begins("epoch", (3,), (0,))
    feedback.encoded(0, 5, SENT)
    feedback.session_begins("epoch", (version,), (counted_in,))
    feedback.outcome(0, 5, merged=told_later)
    assert feedback.residual(0) is (SENT if counts else BEFORE)


def test_after_a_restart_of_the_syncer_the_residual_before_is_kept() -> None:
    feedback = Residuals({0: BEFORE})
    feedback.session_begins("epoch", (4,), (0,))
    feedback.encoded(0, 5, SENT)
    feedback.session_begins("next epoch", (5,), (5,))
    feedback.outcome(0, 5, merged=True)
    assert feedback.snapshot() == {0: BEFORE}


def test_after_a_dropped_outer_gradient_the_next_residual_counts() -> None:
    feedback = Residuals()
    feedback.encoded(0, 5, BEFORE)
    feedback.outcome(0, 5, merged=False)
    feedback.encoded(0, 6, SENT)
    feedback.outcome(0, 6, merged=True)
    assert feedback.residual(0) is SENT


def test_what_another_process_has_used_up_is_forgotten() -> None:
    feedback = Residuals({0: torch.ones(1)})
    feedback.forget()
    assert (feedback.residual(0), feedback.snapshot()) == (None, {})
