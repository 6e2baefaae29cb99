"""Learners of different speed on one machine, acted out: ``--slow us-west/old=0.5``. Pure."""

from collections.abc import Sequence

from diloco.learner.speed import LEAST_SPEED
from diloco.local.targets import TargetError, learners_named


class SpeedError(ValueError):
    """A ``--slow`` that cannot be read; the text is one line that names it."""


def parse_speeds(texts: Sequence[str], learner_ids: Sequence[str]) -> dict[str, float]:
    """Speed of every learner, 1.0 unless slowed down; where several texts name one, the last counts.

    Raises:
        SpeedError: a text is not ``TARGET=FACTOR`` with a factor from ``LEAST_SPEED`` to 1, or names no learner.
    """
    speeds = dict.fromkeys(learner_ids, 1.0)
    for text in texts:
        target, equals, factor_text = text.rpartition("=")
        if not equals or not target:
            raise SpeedError(f"--slow {text!r}: give TARGET=FACTOR, such as us-west/old=0.5")
        try:
            factor = float(factor_text)
        except ValueError:
            factor = 0.0
        if not LEAST_SPEED <= factor <= 1:
            raise SpeedError(
                f"--slow {text!r}: the factor must be a number from {LEAST_SPEED:g} to 1, not {factor_text!r}"
            )
        try:
            for learner in learners_named(target, learner_ids):
                speeds[learner] = factor
        except TargetError as error:
            raise SpeedError(f"--slow {text!r}: {error}") from error
    return speeds
