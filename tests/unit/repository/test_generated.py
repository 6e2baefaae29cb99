"""Generated files are up to date, and the check reports it if they are not."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPTS = ("reference", "crd", "chart_values", "reasons", "quality", "proto", "pod_fields")


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_generated_is_what_its_source_says(name: str) -> None:
    command = [sys.executable, f"scripts/generate_{name}.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_generator_is_checked() -> None:
    assert {f"generate_{name}" for name in SCRIPTS} == {path.stem for path in REPOSITORY.glob("scripts/generate_*.py")}
