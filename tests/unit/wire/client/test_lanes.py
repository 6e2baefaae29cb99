"""How long a link's answers take, as far as it says how many connections it is worth."""

import math

import pytest

from diloco.wire.client.lanes import Lanes
from diloco.wire.client.route import Target


def test_the_least_of_the_latest_answers_counts() -> None:
    lanes = Lanes(lambda _: pytest.fail("nothing is opened"), Target("syncer:1"))
    assert lanes.answer_seconds == math.inf
    lanes.answered(0.01)
    lanes.answered(0.15)
    assert lanes.answer_seconds == 0.01
    for _ in range(32):  # the syncer is elsewhere now
        lanes.answered(0.15)
    assert lanes.answer_seconds == 0.15
