"""What is installed into the images: the operator's own list; for the trainer nothing that replaces its torch."""

import sys
import tomllib
from importlib import util
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = REPOSITORY / "scripts/image_requirements.py"
TESTED = ["numpy==2.4.6", "psutil==7.2.2", "PyYAML==6.0.3", "torch==2.15.0"]
PROJECT: dict[str, Any] = {
    "dependencies": ["numpy>=2.0,<3", "psutil>=7,<8", "PyYAML>=6.0.2,<7", "torch>=2.6,<3"],
    "optional-dependencies": {
        "operator": ["kopf>=1.45,<1.46", "PyYAML>=6.0.2,<7"],
        "hf": ["accelerate>=1,<2", "peft>=0.19,<1", "transformers>=5,<6"],
        "data": ["pyarrow>=21,<27"],
        "docs": ["mkdocs>=1.6,<2"],
    },
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = util.spec_from_file_location("image_requirements", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_the_operator_gets_its_own_list_and_no_torch(script: ModuleType) -> None:
    lines = script.wanted(PROJECT, TESTED, {}, everything=False)
    assert lines.installed == sorted(PROJECT["optional-dependencies"]["operator"])
    assert (lines.kept, lines.constraints) == ([], TESTED)


def test_a_bases_torch_and_numpy_stay_as_they_are(script: ModuleType) -> None:
    base = {"torch": "2.9.0a0+vendor", "numpy": "2.2.4", "psutil": "6.0"}
    lines = script.wanted(PROJECT, TESTED, base, everything=True)
    # What asks for torch comes without what it asks for, as pip would install other versions of torch's own needs.
    assert lines.kept == ["accelerate>=1,<2", "numpy>=2.0,<3", "peft>=0.19,<1", "torch>=2.6,<3"]
    assert {script.named(line) for line in lines.installed} == {"kopf", "psutil", "pyarrow", "pyyaml", "transformers"}
    assert lines.constraints == ["numpy==2.2.4", "torch==2.9.0a0+vendor", "psutil==7.2.2", "PyYAML==6.0.3"]


def test_without_a_bases_torch_the_tested_one_is_installed(script: ModuleType) -> None:
    lines = script.wanted(PROJECT, TESTED, {"pip": "25"}, everything=True)
    assert {"torch>=2.6,<3", "peft>=0.19,<1"} <= set(lines.installed)
    assert (lines.kept, lines.constraints) == ([], TESTED)


def test_the_operators_list_agrees_with_the_dependencies_it_shares() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shared = {line.partition(">")[0]: line for line in project["dependencies"]}
    operator = project["optional-dependencies"]["operator"]
    assert [line for line in operator if shared.get(line.partition(">")[0], line) != line] == []


def test_what_asks_for_torch_has_its_other_needs_from_other_lines(script: ModuleType) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in script.EXTRAS for line in project["optional-dependencies"][extra]),
    ]
    there = {script.named(line) for line in lines} | needs("transformers", script)
    for name in script.ON_TORCH:
        assert needs(name, script) - there == set()


def needs(name: str, script: ModuleType) -> set[str]:
    return {script.named(line) for line in requires(name) or () if "extra ==" not in line}


def test_everything_that_the_dockerfile_copies_reaches_the_builder() -> None:
    # .dockerignore excludes everything and includes some of it again.
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [Path(line[1:]) for line in lines if line.startswith("!")]
    copied = [
        Path(source)
        for line in (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    assert [path for path in copied if not any(path.is_relative_to(one) for one in let_in)] == []
    assert [path for path in copied if not (REPOSITORY / path).exists()] == []
