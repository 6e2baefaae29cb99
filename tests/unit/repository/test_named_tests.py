"""docs/explanation/resilience.md and SECURITY.md say what becomes of faults and attacks, and where it is tested."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SECURITY = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8").partition("## What is defended")[2]
SURVIVED = (REPOSITORY / "docs/explanation/resilience.md").read_text(encoding="utf-8")
FAULTS = SURVIVED.partition("## What is not survived")[0]
SECTIONS = FAULTS.split("\n## ")[1:]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of every row of the tables, without the heads, which begin with ``head``."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return [row for row in cells if row[0] != head]


def test_each_fault_is_told_once_with_its_outcome_and_its_cost() -> None:
    faults = rows(FAULTS, "fault")
    assert len(faults) > 50
    assert [row for row in faults if len(row) != 3 or not all(row)] == []
    for section in SECTIONS:
        kinds = [row[0] for row in rows(section, "fault")]
        assert len(set(kinds)) == len(kinds)


def test_each_attack_says_whether_it_is_defended() -> None:
    attacks = rows(SECURITY, "attack")
    assert len(attacks) > 60
    assert [row[0] for row in attacks if len(row) != 3 or not re.match(r"(yes|bounded|no)\b", row[2])] == []


@pytest.mark.parametrize("text", [*SECTIONS, SECURITY], ids=lambda text: text[:20].strip())
def test_the_tests_that_a_section_names_are_there(text: str) -> None:
    (told,) = re.findall(r"^(?:Tests: |Tests show).*?\n\n", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r"`([^`]+)`", told)
    assert named
    folders = ("", "tests/integration/")
    assert [name for name in named if not any([*REPOSITORY.glob(folder + name)] for folder in folders)] == []
