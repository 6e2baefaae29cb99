"""Residuals of an encoding: which are kept, and which were never merged."""

from random import Random

import pytest
import torch

from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.feedback import encode_with_feedback
from diloco.learner.exchange.residuals import Residual, Residuals

BEFORE, SENT = torch.ones(3), torch.zeros(3)
SAVED = {0: Residual(3, BEFORE)}

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
    feedback = Residuals({} if before is None else {0: Residual(3, before)})
    feedback.encoded(0, 5, SENT)
    for version, merged in outcomes:
        feedback.outcome(0, version, merged=merged)
    assert feedback.residual(0) is (SENT if counts else before)


@pytest.mark.parametrize(
    ("version", "counted_in", "told_later", "counts"),
    [(5, 5, False, True), (7, 5, False, True), (5, 3, True, False), (4, 3, True, True), (4, 3, False, False)],
    ids=["merged meanwhile", "and others since", "made without it", "merged afterwards", "made without it afterwards"],
)
def test_what_was_made_without_a_session_is_settled_at_the_next(
    version: int, counted_in: int, *, told_later: bool, counts: bool
) -> None:
    feedback = Residuals({0: Residual(3, BEFORE)})
    feedback.session_begins("epoch", (3,), (3,))
    feedback.encoded(0, 5, SENT)
    feedback.session_begins("epoch", (version,), (counted_in,))
    feedback.outcome(0, 5, merged=told_later)
    assert feedback.residual(0) is (SENT if counts else BEFORE)


def test_after_a_restart_of_the_syncer_the_residual_before_is_kept() -> None:
    feedback = Residuals({0: Residual(3, BEFORE)})
    feedback.session_begins("epoch", (4,), (3,))
    feedback.encoded(0, 5, SENT)
    feedback.session_begins("next epoch", (4,), (3,))
    feedback.outcome(0, 5, merged=True)
    assert feedback.snapshot() == {0: Residual(3, BEFORE)}


@pytest.mark.parametrize(("counted_in", "kept"), [((3,), [0]), ((4,), []), ((0,), []), ((), [0])])
@pytest.mark.parametrize("told_first", [False, True])
def test_of_a_checkpoint_only_a_residual_that_still_holds_is_restored(
    counted_in: tuple[int, ...], kept: list[int], *, told_first: bool
) -> None:
    feedback = Residuals()
    if not told_first:
        feedback.restore(SAVED)
    feedback.session_begins("epoch", (9,), counted_in)
    if told_first:
        feedback.restore(SAVED)
    assert list(feedback.snapshot()) == kept


@pytest.mark.parametrize("codec", ["Int8", "Int4"])
def test_after_kills_no_error_is_fed_back_twice(codec: str) -> None:
    lost = lost_over_kills(codec_named(codec))
    assert lost < 1.5  # what a dropped residual costs; counted twice it was above 1.8


def lost_over_kills(codec: Codec) -> float:
    """What is missing from the sum of what was merged, in quantization steps, after a kill every ten pushes or so."""
    draw, generator, numel, step = Random(1), torch.Generator().manual_seed(1), 512, 0.0
    feedback, saved, counted = Residuals(), dict[int, Residual](), 0
    missing = torch.zeros(numel, dtype=torch.float64)
    for version in range(1, 401):
        delta = torch.randn(numel, generator=generator) * 0.01 + 0.001
        payload, rest = encode_with_feedback(codec, delta, feedback.residual(0))
        feedback.encoded(0, version, rest)
        decoded = torch.empty(numel)
        codec.decode_into(payload, 0, decoded)
        merged = draw.random() < 0.9
        if merged:
            missing += delta.double() - decoded.double()
            counted = version
        step = max(step, 2 * rest.abs().max().item())
        if draw.random() < 0.1:
            feedback = Residuals()
            feedback.session_begins("epoch", (version,), (counted,))
            feedback.restore(saved)
        else:
            feedback.outcome(0, version, merged=merged)
        if version % 10 == 0:
            saved = feedback.snapshot()
    kept = feedback.residual(0)
    missing -= torch.zeros(numel) if kept is None else kept
    return missing.square().mean().sqrt().item() / step


def test_after_a_dropped_outer_gradient_the_next_residual_counts() -> None:
    feedback = Residuals()
    feedback.encoded(0, 5, BEFORE)
    feedback.outcome(0, 5, merged=False)
    feedback.encoded(0, 6, SENT)
    feedback.outcome(0, 6, merged=True)
    assert feedback.residual(0) is SENT


def test_what_another_process_has_used_up_is_forgotten() -> None:
    feedback = Residuals({0: Residual(1, torch.ones(1))})
    feedback.forget()
    assert (feedback.residual(0), feedback.snapshot()) == (None, {})
