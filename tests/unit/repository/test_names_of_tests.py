"""A test's name is a short statement of what holds."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
MOST_CHARACTERS = 70
_DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)


def test_no_test_has_a_name_of_more_than_70_characters() -> None:
    names = [
        (path.relative_to(TESTS), name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(names) > 1000
    assert [f"{path}: {name}" for path, name in names if len(name) > MOST_CHARACTERS] == []
