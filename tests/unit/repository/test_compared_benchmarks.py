"""`make benchmarks` names at its end each ratio that is worse than the committed one by more than a tenth."""

import re
import sys
from pathlib import Path

import pytest

from support.compare import main
from support.report import Ratio, save_report

REPOSITORY = Path(__file__).parents[3]


def compared(folder: Path, monkeypatch: pytest.MonkeyPatch, now: float, *, less_is_better: bool) -> None:
    """Compare a ratio with one that was 2."""
    for name, value in (("now", now), ("before", 2.0)):
        (folder / name).mkdir()
        ratio = Ratio(value, "a copy", less_is_better)
        save_report(folder / name / "merge.json", "merge", {"rda": ratio}, {})
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


@pytest.mark.parametrize(("now", "less_is_better"), [(1.9, False), (9.0, False), (2.1, True), (0.0, True)])
def test_a_ratio_as_good_or_within_a_tenth_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: float, less_is_better: bool
) -> None:
    compared(tmp_path, monkeypatch, now, less_is_better=less_is_better)


def test_committed_results_are_named_as_their_benchmarks() -> None:
    (listed,) = re.findall(r"for name in (.*); do", (REPOSITORY / "Makefile").read_text().split("\nbenchmarks:")[1])
    committed = {path.stem for path in (REPOSITORY / "benchmarks" / "results").glob("*.json")}
    assert committed - {"goodput", "goodput-8"} <= set(listed.split())
