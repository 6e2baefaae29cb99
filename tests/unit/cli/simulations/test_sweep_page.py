from typing import Any

from diloco.cli.simulations.sweep_page import axis_field, short_names, sweep_page

INTERVAL, EAST, WEST = "sync.interval", "world.regions.east.link", "world.regions.west.link"


def run(**values: str) -> dict[str, Any]:
    figures = {"goodput": 0.5, "merged": 0.5, "finish_seconds": 60.0, "bytes_per_second": 1e6, "cost": None}
    return {"values": values, "ending": "Complete", "reason": "", **figures}


def test_a_name_is_as_short_as_no_other_field_ends() -> None:
    assert short_names([INTERVAL, EAST, WEST]) == {INTERVAL: "interval", EAST: "east.link", WEST: "west.link"}
    assert short_names(["a", "world.a"]) == {"a": "a", "world.a": "world.a"}


def test_the_first_field_of_numbers_or_rates_is_the_axis() -> None:
    rates = [run(rule="RDA", link=link) for link in ("1Gbit/s", "unlimited")]
    assert axis_field(["rule", "link"], rates) == "link"
    assert axis_field(["rule", "link"], rates[1:]) is None
    assert sweep_page("job", ["rule", "link"], rates).count("<svg") == 4


def test_lines_beyond_the_colors_are_counted() -> None:
    runs = [run(interval="6", seed=str(seed)) for seed in range(11)]
    assert "3 more lines are in sweep.json" in sweep_page("job", ["interval", "seed"], runs)
    assert "more lines" not in sweep_page("job", ["interval", "seed"], runs[:8])
