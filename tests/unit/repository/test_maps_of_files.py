"""The maps of files in docs/architecture.md name every file and folder of their package, and nothing else."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "architecture.md"
MAPS = {
    "Map of the learner": "trainer/diloco/learner",
    "Map of the syncer": "trainer/diloco/syncer",
    "The operator": "operator/diloco_operator",
}


def mapped(heading: str) -> dict[str, set[str]]:
    """What the map below ``heading`` names, by folder; a folder's own rows start with a hyphen."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, set[str]] = {"": set()}
    folder = ""
    for line in section.splitlines():
        if not re.match(r"\| (- )?`", line):
            continue
        cell = line.split("|")[1].strip()
        names = re.findall(r"`([^`]+)`", cell)
        if cell.startswith("- "):
            found.setdefault(folder, set()).update(names)
        else:
            found[""].update(names)
            folder = names[0]
    return found


def present(folder: Path) -> set[str]:
    """Modules and sub-packages of ``folder``, written as a map writes them."""
    modules = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return modules | {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize(("heading", "package"), MAPS.items(), ids=MAPS.values())
def test_a_map_names_each_file_of_its_package(heading: str, package: str) -> None:
    wrong = {
        folder: sorted(names ^ present(REPOSITORY / package / folder))
        for folder, names in mapped(heading).items()
        if names != present(REPOSITORY / package / folder)
    }
    assert wrong == {}
