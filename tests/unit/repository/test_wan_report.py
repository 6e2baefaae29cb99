"""What the benchmark `wan` makes of its cells: bytes against arithmetic, speeds, losses at equal tokens and time."""

from pathlib import Path
from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from support.report import append_entry, read_entries
from support.wan.cells import FULL, LINKS, METHODS, SMALL, Cell
from support.wan.figures import byte_ratio, bytes_an_interval, figures, loss_at, ratios
from wan import cells, key

LINK = "100mbit-20ms"
PARAMETERS = 1000
RING = Cell(LINK, "data_parallel", 0, SMALL)
OURS = Cell(LINK, "ours_f32", 0, SMALL)
FREE = Cell("unlinked", "ours_f32", 0, SMALL)


def result(seconds: float, **changes: Any) -> dict[str, Any]:
    evaluations = [{"seconds": seconds * part, "tokens": 100.0 * part, "loss": 4.0 - part} for part in (0.5, 1.0)]
    return {
        "seconds": seconds,
        "steps": 10,
        "tokens": 100,
        "blocked_share": 0.0,
        "evaluations": evaluations,
        "up_bytes": [0] * 4,
        "down_bytes": [0] * 4,
        "commit": "abc",
        "steady_rounds": 0,
        "steady_bytes": 0,
        **changes,
    }


@pytest.mark.parametrize(("method", "expected"), [("blocking", 36), ("ours_f32", 48), ("ours_int8", 187)])
def test_the_arithmetic_of_bytes_is_that_of_the_ring(method: str, expected: float) -> None:
    assert byte_ratio(method) == pytest.approx(expected, abs=0.6)


def test_bytes_as_they_should_be_measure_what_the_arithmetic_says() -> None:
    each_way = 10 * 2 * 3 / 4 * 4 * PARAMETERS  # ten steps of a ring of four, f32
    ring = result(40.0, up_bytes=[each_way] * 4, down_bytes=[each_way] * 4)
    # 48 merges are two synchronizations of the whole model: 2 bytes a parameter up and 4 down, of four learners.
    ours = result(4.0, steady_rounds=48, steady_bytes=2 * 4 * 6 * PARAMETERS)
    assert bytes_an_interval(OURS, ours) == 6 * PARAMETERS
    found = {name: ratio.value for name, ratio in ratios({RING: ring, OURS: ours, FREE: result(3.9)}).items()}
    assert found[f"bytes_{LINK}_data_parallel_over_ours_f32"] == pytest.approx(48)
    assert found[f"bytes_{LINK}_data_parallel_over_ours_f32_measured"] == pytest.approx(1)
    assert found[f"speed_{LINK}_ours_f32"] == pytest.approx(3.9 / 4)
    assert found[f"time_{LINK}_data_parallel_over_ours_f32"] == pytest.approx(10)


def test_losses_are_compared_where_every_method_has_been() -> None:
    slow, fast = result(40.0), result(10.0)
    ring, ours = figures({RING: slow, OURS: fast})["cells"]
    assert ring["loss_at_equal_time"] is None  # it has not evaluated anything by then
    assert ours["loss_at_equal_time"] == 3.0
    assert ring["loss_at_equal_tokens"] == ours["loss_at_equal_tokens"] == 3.0
    assert loss_at(slow["evaluations"], "seconds", 30.0) == 3.25


def test_a_run_that_is_too_short_has_no_ratio_of_bytes() -> None:
    short = result(4.0, steady_rounds=0, steady_bytes=0)
    found = ratios({RING: result(4.0), OURS: short})
    assert f"time_{LINK}_data_parallel_over_ours_f32" in found
    assert not any(name.endswith("_measured") for name in found)


@pytest.mark.parametrize("size", [FULL, SMALL], ids=["full", "small"])
def test_every_cell_is_a_job_and_has_a_key_of_its_own(size: Any) -> None:
    planned = cells(size)
    for cell in planned:
        DiLoCoJob.model_validate(cell.manifest())
    assert len({key(cell) for cell in planned}) == len(planned)
    assert {cell.link for cell in planned} == set(LINKS)
    assert {cell.method for cell in planned} == set(METHODS)


def test_a_torn_line_of_what_was_finished_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    assert list(read_entries(path)) == []
    for key_of in ("a", "b"):
        append_entry(path, {"key": key_of})
    path.write_text(path.read_text()[:-4])
    assert list(read_entries(path)) == [{"key": "a"}]
