"""docs/explanation/resilience.md and SECURITY.md name a test for each fault and claim, and it is there."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs/explanation/resilience.md").read_text(encoding="utf-8")
SECURITY = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
COLUMNS = 4
LEAST_KINDS = 40


def rows() -> list[list[str]]:
    """The cells of every row of the page's tables of faults, without the heads."""
    lines = [line for line in PAGE.partition("## What is not survived")[0].splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "fault"]


def cited_in(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+::[^`]+)`", row[-1])


def named() -> list[str]:
    return sorted({test for row in rows() for test in cited_in(row)})


def test_enough_kinds_are_told_each_once() -> None:
    kinds = [row[0] for row in rows()]
    assert len(kinds) >= LEAST_KINDS
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_fault_has_an_outcome_a_bound_and_a_test(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    assert cited_in(row)


@pytest.mark.parametrize("test", named())
def test_a_test_that_the_page_names_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    text = (REPOSITORY / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE)


def test_each_claim_of_security_says_whether_and_names_its_tests() -> None:
    lines = [line for line in SECURITY.split("## What is defended", 1)[1].splitlines() if line[:1] == "|"][2:]
    assert len(lines) > 20
    for attack, _, defended, shown in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        tests = re.findall(r"`(tests/[^`]+)`", shown)
        assert re.match(r"(yes|bounded|no)\b", defended), attack
        assert bool(tests) != defended.startswith("no"), attack
        assert [test for test in tests if not (REPOSITORY / test).is_file()] == [], attack
