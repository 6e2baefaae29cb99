"""Generated files are up to date, and the check reports it if they are not."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def check(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"scripts/{script}", "--check"]
    return subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)


def test_the_reference_is_what_the_models_say() -> None:
    done = check("generate_reference.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_custom_resource_is_what_the_models_say() -> None:
    done = check("generate_crd.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_charts_values_are_what_its_readme_says() -> None:
    done = check("generate_chart_values.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_table_of_reasons_is_what_the_operator_says() -> None:
    done = check("generate_reasons.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tables_of_quality_are_what_was_measured() -> None:
    done = check("generate_quality.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stubs_are_what_the_proto_file_says() -> None:
    assert check("generate_proto.py").returncode == 0
