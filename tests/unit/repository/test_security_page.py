"""SECURITY.md names a test for each claim."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def rows() -> list[list[str]]:
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8").split("## What is defended", 1)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"][2:]


def test_what_is_defended_names_its_tests_and_they_are_there() -> None:
    for attack, _, defended, shown in rows():
        tests = re.findall(r"`(tests/[^`]+)`", shown)
        assert bool(tests) != defended.startswith("no"), attack
        missing = [test for test in tests if not (REPOSITORY / test).is_file()]
        assert missing == [], attack


def test_every_row_says_whether() -> None:
    assert len(rows()) > 20
    assert all(re.match(r"(yes|bounded|no)\b", row[2]) for row in rows())
