"""Files of the repository that are made or held to something: generated ones, names of tests, mutants, benchmarks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
TESTS = REPOSITORY / "tests"
BENCHMARKS = REPOSITORY / "benchmarks"
MOST_CHARACTERS = 70
_DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
IMPORT_EACH = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    runpy.run_path(path)
"""


@pytest.mark.slow
def test_the_tables_of_large_models_are_what_plan_counts() -> None:
    """All other files that are generated are checked by `make lint`; this counts models of up to 70B parameters."""
    command = [sys.executable, "scripts/generate_scale.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_generator_is_checked() -> None:
    checked = set(re.findall(r"scripts/(\w+)\.py --check", (REPOSITORY / "Makefile").read_text(encoding="utf-8")))
    assert checked | {"generate_scale"} == {path.stem for path in REPOSITORY.glob("scripts/generate_*.py")}


def test_no_test_has_a_name_of_more_than_70_characters() -> None:
    names = [
        (path.relative_to(TESTS), name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(names) > 1000
    assert [f"{path}: {name}" for path, name in names if len(name) > MOST_CHARACTERS] == []


def test_every_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    listed = tomllib.loads((REPOSITORY / "scripts/equivalent_mutants.toml").read_text(encoding="utf-8"))["mutant"]
    assert listed
    lines = {
        name: {line.strip() for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()}
        for name in {one["file"] for one in listed}
    }
    assert [one["before"] for one in listed if one["before"] not in lines[one["file"]]] == []
    assert all(one["reason"] and one["after"] != one["before"] for one in listed)


@pytest.mark.slow
def test_each_benchmark_finds_what_it_imports(tmp_path: Path) -> None:
    """From a checkout with nothing on the path but what is installed."""
    paths = sorted(map(str, BENCHMARKS.glob("*.py")))
    assert len(paths) > 10
    subprocess.run([sys.executable, "-c", IMPORT_EACH, str(BENCHMARKS), *paths], cwd=tmp_path, env={}, check=True)
