"""Which learners a name on the command line means: one, a pool, a region, or all of them. Pure."""

from collections.abc import Sequence

from diloco.spec.learner_ids import pool_of, region_of

EVERY = "*"


class TargetError(ValueError):
    """A name that fits no learner of the job; the text lists what would."""


def learners_named(target: str, learner_ids: Sequence[str]) -> tuple[str, ...]:
    """The learners that ``target`` means: ``region/pool/index``, ``region/pool``, ``region`` or ``*``.

    Raises:
        TargetError: no learner of the job is meant.
    """
    if target == EVERY:
        return tuple(learner_ids)
    found = tuple(learner for learner in learner_ids if learner == target or learner.startswith(f"{target}/"))
    if not found:
        raise TargetError(f"{target!r} names no learner of this job: use {_choices(learner_ids)}")
    return found


def regions_named(target: str, learner_ids: Sequence[str]) -> tuple[str, ...]:
    """The regions that ``target`` means: one by its name, or all of them by ``*``.

    Raises:
        TargetError: the job has no such region with learners.
    """
    regions = tuple(dict.fromkeys(region_of(learner) for learner in learner_ids))
    if target == EVERY:
        return regions
    if target not in regions:
        raise TargetError(f"{target!r} is no region of this job: use {', '.join(regions)} or {EVERY}")
    return (target,)


def _choices(learner_ids: Sequence[str]) -> str:
    pools = tuple(dict.fromkeys(pool_of(learner) for learner in learner_ids))
    shown = [*pools[:4], *(["..."] if len(pools) > 4 else []), *learner_ids[:1]]
    return f"{EVERY}, {', '.join(shown)}"
