import pytest

from diloco.spec import JobSpec
from diloco.world.cost import cost_of, price_per_hour
from diloco.world.model import World
from tests.support.small_job import small_job

WORLD = World.model_validate(
    {
        "regions": {
            "*": {"pools": {"*": {"pricePerHour": 2.0}}},
            "west": {"pricePerGB": 0.05, "pools": {"*": {"chips": 8}}},
        },
        "syncer": {"pricePerHour": 0.5},
    }
)


def job() -> JobSpec:
    regions = [
        {"name": "east", "pools": [{"name": "a", "learners": 2, "processesPerNode": 4}]},
        {"name": "west", "pools": [{"name": "b", "learners": 1}]},
    ]
    return small_job(regions=regions)


def test_accelerators_cost_by_the_hour_and_links_by_the_byte() -> None:
    assert price_per_hour(job(), WORLD) == 2 * 4 * 2.0 + 8 * 2.0 + 0.5
    assert cost_of(job(), WORLD, 1800, {"east": 1e12, "west": 2e9}) == pytest.approx(32.5 / 2 + 0.1)
    assert cost_of(job(), World(), 1e9, {"west": 1e12}) == 0
