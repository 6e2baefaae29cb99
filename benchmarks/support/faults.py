"""Faults of simulated runs at times drawn from a seed."""

import random
from collections.abc import Callable

from diloco.simulate.checks import above_zero
from diloco.simulate.scenario import Fault


def faults_every(
    seconds: float, make: Callable[[str, float], Fault], *, learners: tuple[str, ...], until_seconds: float, seed: int
) -> tuple[Fault, ...]:
    """One fault in every ``seconds`` of time, at a moment and of a learner drawn evenly from ``seed``.

    ``make`` is called with the learner and the moment, in seconds.
    """
    above_zero("seconds between faults", seconds)
    draw = random.Random(f"faults/{seed}")  # noqa: S311 - a scenario, no secret
    faults = []
    for stretch in range(int(until_seconds // seconds)):
        at_seconds = (stretch + draw.random()) * seconds
        faults.append(make(draw.choice(learners), at_seconds))
    return tuple(faults)
