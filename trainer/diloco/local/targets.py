"""Finds the learners that a name on the command line means, and their speeds from ``--slow``. Pure."""

from collections.abc import Sequence

from diloco.learner.options import LEAST_SPEED
from diloco.spec.names.learner_ids import pool_of, region_of

EVERY = "*"

SYNCER = "syncer"
"""The syncer's name among the processes of a run, beside the learners' ids."""


class TargetError(ValueError):
    """A name that fits no learner of the job; the text lists those that would."""


def learners_named(target: str, learner_ids: Sequence[str]) -> tuple[str, ...]:
    """The learners that ``target`` means: ``region/pool/index``, ``region/pool``, ``region`` or ``*``.

    Raises:
        TargetError: it names no learner of the job.
    """
    if target == EVERY:
        return tuple(learner_ids)
    named = tuple(learner for learner in learner_ids if learner == target or learner.startswith(f"{target}/"))
    if not named:
        raise TargetError(f"{target!r} matches no learner of this job; use {_choices(learner_ids)}")
    return named


def regions_named(target: str, learner_ids: Sequence[str]) -> tuple[str, ...]:
    """The regions that ``target`` means: one by its name, or all of them by ``*``.

    Raises:
        TargetError: the job has no such region with learners.
    """
    regions = tuple(dict.fromkeys(region_of(learner) for learner in learner_ids))
    if target == EVERY:
        return regions
    if target not in regions:
        raise TargetError(f"{target!r} is not a region of this job; use {', '.join(regions)} or {EVERY}")
    return (target,)


def _choices(learner_ids: Sequence[str]) -> str:
    pools = tuple(dict.fromkeys(pool_of(learner) for learner in learner_ids))
    shown = [*pools[:4], *(["..."] if len(pools) > 4 else []), *learner_ids[:1]]
    return f"{EVERY}, {', '.join(shown)}"


class SpeedError(ValueError):
    """An invalid ``--slow``; the text is one line that names it."""


def parse_speeds(texts: Sequence[str], learner_ids: Sequence[str]) -> dict[str, float]:
    """Speed of every learner, 1.0 unless slowed down; if several texts name one, the last counts.

    Raises:
        SpeedError: a text is not ``TARGET=FACTOR`` with a factor from ``LEAST_SPEED`` to 1, or names no learner.
    """
    speeds = dict.fromkeys(learner_ids, 1.0)
    for text in texts:
        target, equals, factor_text = text.rpartition("=")
        if not equals or not target:
            raise SpeedError(f"--slow {text!r}: is not TARGET=FACTOR; use one such as us-west/old=0.5")
        try:
            factor = float(factor_text)
        except ValueError:
            factor = 0.0
        if not LEAST_SPEED <= factor <= 1:
            raise SpeedError(
                f"--slow {text!r}: {factor_text!r} is not a valid factor; use a number from {LEAST_SPEED:g} to 1"
            )
        try:
            for learner in learners_named(target, learner_ids):
                speeds[learner] = factor
        except TargetError as error:
            raise SpeedError(f"--slow {text!r}: {error}") from error
    return speeds
