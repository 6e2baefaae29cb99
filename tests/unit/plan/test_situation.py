import math

import pytest

from diloco.plan.situation import SYNCER_LINK, Exchange, LearnerGroup, Link, Situation, rate_text
from diloco.spec.sync import SyncSpec


@pytest.mark.parametrize(("overlap", "steps"), [("Auto", None), (0, 0), (5, 5)])
def test_an_exchange_is_what_a_manifest_says(overlap: str | int, steps: int | None) -> None:
    spec = SyncSpec.model_validate(
        {
            "interval": 30,
            "overlap": overlap,
            "maxStalenessSteps": 70,
            "quorum": 3,
            "compression": "TopK",
            "density": 0.125,
            "downlink": "TopK",
        }
    )
    made = Exchange.of(spec, (4096, 2))
    assert made == Exchange((4096, 2), 30, steps, 70, 3, "TopK", "TopK", 0.125)
    assert (made.up_bytes, made.down_bytes) == ((4 + 512 * 14 // 8, 4 + 2), (4 + 1024 * 14 // 8, 4 + 2))


def exchange(interval: int = 4, bound: int | None = None, quorum: int = 1) -> Exchange:
    return Exchange((100, 300), interval, None, bound, quorum, "BF16", "F32")


def test_bytes_of_each_fragment() -> None:
    one = exchange()
    assert (one.up_bytes, one.down_bytes, one.load_bytes) == ((200, 600), (400, 1200), 1600)


@pytest.mark.parametrize(
    ("interval", "bound", "longest"), [(4, None, 3), (1, None, 0), (4, 100, 3), (4, 6, 2), (4, 4, 0), (4, 3, 0)]
)
def test_an_overlap_ends_before_the_next_interval_and_the_staleness_bound(
    interval: int, bound: int | None, longest: int
) -> None:
    assert exchange(interval, bound).longest_overlap == longest


WEST, EAST = Link("west"), Link("east", 8.0)


def test_every_link_is_told_with_the_learners_behind_it() -> None:
    groups = (LearnerGroup("a", 1, WEST, 1.0), LearnerGroup("b", 2, EAST, 1.0), LearnerGroup("c", 4, WEST, 1.0))
    world = Situation(exchange(), groups)
    assert world == Situation(exchange(), groups, Link(SYNCER_LINK), merge_seconds=0.0)
    assert groups[0] == LearnerGroup("a", 1, WEST, 1.0, tokens_per_step=1.0)
    assert world.learners == 7
    assert world.links == ((WEST, 5), (EAST, 2), (Link(SYNCER_LINK, math.inf, math.inf, 0.0), 7))


@pytest.mark.parametrize(
    ("quorum", "steps", "seconds"),
    [
        (1, (3.0, 1.0, 2.0), 1.0),
        (2, (3.0, 1.0, 2.0), 1.0),  # two learners in each group
        (3, (3.0, 1.0, 2.0), 2.0),
        (6, (3.0, 1.0, 2.0), 3.0),
        (7, (3.0, 1.0, 2.0), 3.0),
        (1, (3.0, None, 2.0), None),
        (1, (None,), None),
        (1, (), None),
    ],
)
def test_the_quorums_slowest_learner_tells_the_time(
    quorum: int, steps: tuple[float | None, ...], seconds: float | None
) -> None:
    groups = tuple(LearnerGroup(f"g{at}", 2, WEST, one) for at, one in enumerate(steps))
    assert Situation(exchange(quorum=quorum), groups).quorum_step_seconds == seconds


def test_rates_of_links_are_told_in_bits() -> None:
    told = [rate_text(rate) for rate in (1.0, 1250.0, 12.5e6, 2.5e9)]
    assert told == ["8 bit/s", "10 kbit/s", "100 Mbit/s", "20 Gbit/s"]
    assert [rate_text(rate) for rate in (125.0, 125e3, 125e6)] == ["1 kbit/s", "1 Mbit/s", "1 Gbit/s"]
