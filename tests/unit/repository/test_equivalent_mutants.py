"""The listed equivalent mutants are changes of existing lines."""

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def test_every_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    listed = tomllib.loads((REPOSITORY / "scripts/equivalent_mutants.toml").read_text(encoding="utf-8"))["mutant"]
    assert listed
    lines = {
        name: {line.strip() for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()}
        for name in {one["file"] for one in listed}
    }
    assert [one["before"] for one in listed if one["before"] not in lines[one["file"]]] == []
    assert all(one["reason"] and one["after"] != one["before"] for one in listed)
