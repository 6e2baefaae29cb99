import math
from pathlib import Path

import pytest

from diloco.spec import JobSpec
from diloco.spec.errors import SpecError
from diloco.world.model import World
from diloco.world.reading import load_world, read_world, world_schema
from tests.support.small_job import small_job

REGIONS = [
    {"name": "east", "pools": [{"name": "new", "learners": 2}, {"name": "old", "learners": 1}]},
    {"name": "west", "pools": [{"name": "new", "learners": 2, "processesPerNode": 4}]},
]
FILE = """
regions:
  "*":
    roundTripSeconds: 0.05
    pricePerGB: 0.02
    pools:
      "*": {stepSeconds: 0.5, recovery: {meanSeconds: 60}}
      new: {stepSeconds: 0.25, chips: 16, sliceChips: 8}
  west:
    link: 200Mbit/s
    roundTripSeconds: 0.08
    pools:
      "*": {pricePerHour: 2.5}
syncer: {link: 10Gbit/s}
"""


def job() -> JobSpec:
    return small_job(Path("text"), regions=REGIONS)


def written(folder: Path, text: str) -> Path:
    path = folder / "world.yaml"
    path.write_text(text)
    return path


def test_every_field_has_a_default_and_a_description() -> None:
    assert World() == World.model_validate({"regions": {}, "syncer": {}})
    definitions = world_schema().root["$defs"].values()
    fields = [(name, field) for one in definitions for name, field in one["properties"].items()]
    assert [name for name, field in fields if "description" not in field] == []
    assert [one["title"] for one in definitions if "required" in one] == []


def test_what_a_region_says_goes_before_what_every_region_says(tmp_path: Path) -> None:
    world = load_world(written(tmp_path, FILE), job())
    east, west = world.region("east"), world.region("west")
    assert (east.bytes_per_second, east.round_trip_seconds, east.price_per_gb) == (math.inf, 0.05, 0.02)
    assert (west.bytes_per_second, west.round_trip_seconds, west.price_per_gb) == (25e6, 0.08, 0.02)
    old, new = world.pool("east/old"), world.pool("west/new")
    assert (old.step_seconds, old.chips, old.recovery.mean_seconds, old.price_per_hour) == (0.5, None, 60, 0)
    assert (new.step_seconds, new.chips, new.slice_chips, new.price_per_hour) == (0.25, 16, 8, 2.5)
    assert [world.chips(job(), place) for place in ("east/old", "west/new")] == [1, 16]
    assert [world.gives_link(name) for name in ("east", "west")] == [True, True]
    assert not World().gives_link("east")


def test_a_step_time_follows_from_the_operations_of_the_chips(tmp_path: Path) -> None:
    world = load_world(written(tmp_path, "regions: {'*': {pools: {'*': {chipFlops: 1.0e+12, mfu: 0.5}}}}"), job())
    tokens = 4 * 16
    assert world.step_seconds(job(), "east/old", 10**9) == pytest.approx(6e9 * tokens / 0.5e12)
    assert world.step_seconds(job(), "west/new", 10**9) == pytest.approx(6e9 * tokens / 0.5e12 / 4)
    assert World().step_seconds(job(), "east/old", 10**9) is None
    text = "regions: {'*': {pools: {'*': {stepSeconds: 2}, new: {chipFlops: 1.0e+12}}}}"
    world = load_world(written(tmp_path, text), job())
    assert world.step_seconds(job(), "east/old", 10**9) == 2
    assert world.step_seconds(job(), "east/new", 10**9) == pytest.approx(6e9 * tokens / 0.4e12)


def test_flags_change_what_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    world = read_world(job(), ["west=1Gbit/s,10ms", "syncer=unlimited"], ["west=3"], file=path)
    west = world.region("west")
    assert (west.bytes_per_second, west.round_trip_seconds, west.price_per_gb) == (125e6, 0.01, 0.02)
    assert (world.pool("west/new").step_seconds, world.pool("west/new").chips) == (3.0, 16)
    assert world.pool("east/old").step_seconds == 0.5
    assert world.syncer.bytes_per_second == math.inf


def test_a_flag_without_a_round_trip_keeps_that_of_the_file(tmp_path: Path) -> None:
    world = read_world(job(), ["*=1Gbit/s"], file=written(tmp_path, FILE))
    links = [(one.bytes_per_second, one.round_trip_seconds) for one in map(world.region, ("east", "west"))]
    assert links == [(125e6, 0.05), (125e6, 0.08)]


def test_a_part_of_a_recovery_keeps_the_rest_of_what_every_pool_says(tmp_path: Path) -> None:
    text = """
regions:
  "*": {pools: {"*": {recovery: {meanSeconds: 60, shape: 2}}, old: {recovery: {power: 3}}}}
  east: {pools: {"*": {recovery: {shape: 4}}}}
"""
    world = load_world(written(tmp_path, text), job())
    found = [world.pool(place).recovery for place in ("east/new", "east/old", "west/new")]
    assert [(one.mean_seconds, one.shape, one.power) for one in found] == [(60, 4, 1), (60, 4, 3), (60, 2, 1)]


def test_slices_that_suit_no_pool_are_told_once_where_the_file_has_them(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_world(written(tmp_path, "regions:\n  '*':\n    pools:\n      '*': {sliceChips: 8}"), job())
    assert str(caught.value) == (
        f"{tmp_path / 'world.yaml'}:4: regions.*.pools.*.sliceChips: 8 is more than the 1 chips of a learner at"
        " east/new; use at most 1"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("regions: {wst: {}}", "1: regions.wst: is not a region of the job; use east, west, '*'"),
        ("regions: {west: {pools: {old: {}}}}", "1: regions.west.pools.old: is not a pool of the job there; use new"),
        ("regions:\n  west: {lnk: 1Gbit/s}", "2: regions.west.lnk: is not a field here; did you mean link?"),
        ("regions: {west: {link: 1Gb}}", '1: regions.west.link: "1Gb" does not fit; use a rate such as 500Mbit/s'),
        ("regions: {west: {link: 0Mbit/s}}", "1: regions.west.link: '0Mbit/s' is zero, too small or too large"),
        ("syncer: {link: 5}", "1: syncer.link: 5 is not text; put it in quotes"),
        (
            "regions: {'*': {pools: {'*': {stepSeconds: -1}}}}",
            "1: regions.*.pools.*.stepSeconds: -1 is too small; use a number above 0",
        ),
        (
            "regions: {'*': {pools: {'*': {recovery: {shape: 0}}}}}",
            "regions.*.pools.*.recovery.shape: 0 is too small; use a number from 0.1 to 100",
        ),
        (
            "regions: {'*': {pools: {'*': {chips: 6, sliceChips: 8}}}}",
            "1: regions.*.pools.*.sliceChips: 8 is more than the 6 chips of a learner at east/new; use at most 6",
        ),
        ("", "world.yaml: is empty; use a YAML mapping"),
        ("'': 1", "world: is not a field here; use regions or syncer"),
        ("- 1", "world.yaml: is not a mapping; its fields are regions and syncer"),
        ("{a", "is not valid YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line_its_value_and_what_is_allowed(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_world(written(tmp_path, text), job())
    assert told in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: no such file or directory; use the path of a world file"):
        load_world(tmp_path / "none.yaml", job())
