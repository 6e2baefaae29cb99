"""Rounds that a budget takes, computed, and counted with the engine in virtual time."""

import pytest

from diloco.plan.fit.fit import fit
from diloco.plan.needs import needs
from tests.unit.simulate.test_fit_against_simulation import GOOD, World

STEPS = 600
TOLERANCE = 0.02
"""Of the rounds, and so of the bytes."""
THIN = {"two on thin links": 0.03, "thin, with encoded updates": 0.1}
"""Queues on links that are nearly full make less of the work count than the closed form says, so there are more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_rounds_until_the_budget_are_those_of_the_engine(name: str) -> None:
    world: World = GOOD[name]
    scene = world.situation()
    counted = world.course(STEPS)
    found = needs(scene, fit(scene), STEPS * len(world.steps))  # a token a step
    assert found.rounds == pytest.approx(counted.counts.merges, rel=THIN.get(name, TOLERANCE))
