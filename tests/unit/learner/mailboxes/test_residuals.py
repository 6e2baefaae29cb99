"""Residuals of an encoding: which are kept, and which were never merged."""

import torch

from diloco.learner.mailboxes.residuals import Residuals


def test_a_residual_counts_once_its_outer_gradient_is_merged() -> None:
    feedback = Residuals()
    lost = torch.ones(3)
    feedback.encoded(0, 5, lost)
    assert feedback.residual(0) is None
    feedback.outcome(0, 5, merged=True)
    assert feedback.residual(0) is lost


def test_a_residual_of_a_dropped_outer_gradient_never_counts() -> None:
    before = torch.ones(3)
    feedback = Residuals({0: before})
    feedback.encoded(0, 5, torch.zeros(3))
    feedback.outcome(0, 5, merged=False)
    feedback.outcome(0, 6, merged=True)
    assert feedback.residual(0) is before


def test_the_outcome_of_an_earlier_version_says_nothing_about_a_later_one() -> None:
    feedback = Residuals()
    lost = torch.ones(3)
    feedback.encoded(0, 6, lost)
    feedback.outcome(0, 5, merged=True)
    assert feedback.residual(0) is None
    feedback.outcome(0, 6, merged=True)
    assert feedback.residual(0) is lost


def test_an_unknown_outcome_keeps_the_residual_before() -> None:
    before = torch.ones(3)
    feedback = Residuals({0: before})
    feedback.encoded(0, 5, torch.zeros(3))
    feedback.session_over()
    feedback.outcome(0, 5, merged=True)
    assert feedback.snapshot() == {0: before}


def test_an_outcome_settles_what_was_sent_once() -> None:
    feedback = Residuals()
    residual = torch.ones(1)
    feedback.encoded(0, 5, residual)
    feedback.outcome(0, 5, merged=False)
    feedback.outcome(0, 5, merged=True)
    assert feedback.residual(0) is None
    feedback.encoded(0, 6, residual)
    feedback.outcome(0, 6, merged=True)
    assert feedback.residual(0) is residual


def test_what_another_process_has_used_up_is_forgotten() -> None:
    feedback = Residuals({0: torch.ones(1)})
    feedback.forget()
    assert (feedback.residual(0), feedback.snapshot()) == (None, {})
