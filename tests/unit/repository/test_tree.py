"""The annotated tree of docs/architecture.md is the tree, and links between pages lead somewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
_TRAINER = Path("trainer/diloco")
BRANCHED = (
    Path(),
    Path("trainer"),
    _TRAINER,
    *(_TRAINER / name for name in ("syncer", "learner")),
    Path("operator/diloco_operator"),
    Path("operator/diloco_operator/decide"),
    Path("testbed"),
    Path("tests"),
)
"""Folders whose contents the tree names one by one: folders below, and at the top files too."""


def documented_tree() -> set[Path]:
    """Every path that the tree names."""
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    block = text.split("## The tree", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    named: set[Path] = set()
    parents: list[str] = []
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        named.add(Path(*parents))
    return named


def files_of_repository() -> list[Path]:
    """Every file that is, or is about to be, under version control."""
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the tree is not known")
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    return [Path(line) for line in listed.splitlines() if (REPOSITORY / line).is_file()]


def test_what_the_tree_names_is_there() -> None:
    files = files_of_repository()
    there = {*files, *(parent for file in files for parent in file.parents)}
    assert sorted(map(str, documented_tree() - there)) == []


def test_what_is_there_is_named_by_the_tree() -> None:
    files = files_of_repository()
    folders = {parent for file in files for parent in file.parents if parent != Path()}
    expected = {folder for folder in folders if folder.parent in BRANCHED}
    expected |= {file for file in files if file.parent == Path() and not file.name.startswith(".")}
    assert sorted(map(str, expected - documented_tree())) == []


def test_links_between_pages_lead_somewhere() -> None:
    pages = [file for file in files_of_repository() if file.suffix == ".md"]
    broken = [
        f"{page}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", (REPOSITORY / page).read_text(encoding="utf-8"))
        if "://" not in target and not (REPOSITORY / page.parent / target).exists()
    ]
    assert broken == []
