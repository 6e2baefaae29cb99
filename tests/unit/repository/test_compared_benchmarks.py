"""`make benchmarks` names at its end each ratio that is worse than the committed one by more than a tenth."""

import json
import re
import sys
from pathlib import Path

import pytest

from support.compare import main
from support.report import Ratio, save_report

REPOSITORY = Path(__file__).parents[3]


def compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, now: float, *, less_is_better: bool, then_on: str = ""
) -> None:
    """Compare a ratio with one that was 2, on this processor or on ``then_on``."""
    for name, value in (("now", now), ("before", 2.0)):
        (folder / name).mkdir()
        ratio = Ratio(value, "a copy", less_is_better)
        report = save_report(None, "merge", {"rda": ratio}, {})
        if name == "before" and then_on:
            report["machine"]["processor"] = then_on
        (folder / name / "merge.json").write_text(json.dumps(report))
    monkeypatch.setattr(sys, "argv", ["compare", str(folder / "now"), str(folder / "before")])
    main()


@pytest.mark.parametrize(
    ("now", "less_is_better", "said"), [(1.7, False, "fell from 2 to 1.7"), (2.3, True, "rose from 2 to 2.3")]
)
def test_a_worse_ratio_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: float, less_is_better: bool, said: str
) -> None:
    with pytest.raises(SystemExit, match=f"^merge: rda {said}$"):
        compared(tmp_path, monkeypatch, now, less_is_better=less_is_better)


def test_a_worse_ratio_of_another_processor_is_named_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^merge: rda fell from 2 to 1 \(on Z80 then, on .+ now\)$"):
        compared(tmp_path, monkeypatch, 1.0, less_is_better=False, then_on="Z80")


@pytest.mark.parametrize(("now", "less_is_better"), [(1.9, False), (9.0, False), (2.1, True), (0.0, True)])
def test_a_ratio_as_good_or_within_a_tenth_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: float, less_is_better: bool
) -> None:
    compared(tmp_path, monkeypatch, now, less_is_better=less_is_better)


def test_committed_results_are_named_as_their_benchmarks() -> None:
    (listed,) = re.findall(r"for name in (.*); do", (REPOSITORY / "Makefile").read_text().split("\nbenchmarks:")[1])
    committed = {path.stem for path in (REPOSITORY / "benchmarks" / "results").glob("*.json")}
    assert committed - {"goodput", "goodput-8", "mfu", "wan"} <= set(listed.split())
