import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from diloco.cli.main import app

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
MOST_WORDS = 90
"""Of a decision without its tables, title and what was rejected: 80 are meant."""
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6}) (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page that is, or is about to be, under version control."""
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the tree is not known")
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    return [path for line in listed.splitlines() if (path := REPOSITORY / line).is_file()]


def text_of(page: Path) -> str:
    """Without fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """As hosts of repositories make them from headings."""
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for _, heading in _HEADING.findall(text_of(page))]
    return {one.replace(" ", "-") for one in words}


def decisions() -> list[tuple[str, str]]:
    """Title and text of each."""
    found = []
    for page in sorted((DOCS / "explanation/decisions").glob("*.md")):
        text = text_of(page)
        headings = [*_HEADING.finditer(text), None]
        for here, after in pairwise(headings):
            assert here is not None
            body = text[here.end() : after.start() if after else None].strip()
            if page.name != "README.md" and body:
                found.append((here[2], body))
    return found


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in pages():
        for target, anchor in _LINK.findall(text_of(page)):
            there = page.parent / target if target else page
            if "://" in target or (there.exists() and (not anchor or anchor[1:] in anchors(there))):
                continue
            broken.append(f"{page.relative_to(REPOSITORY)}: {target}{anchor}")
    assert broken == []


def test_each_page_of_docs_is_on_the_site() -> None:
    site = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in site] == []


@pytest.mark.parametrize(("title", "text"), decisions(), ids=lambda part: part[:60])
def test_a_decision_is_short_and_says_what_was_rejected(title: str, text: str) -> None:
    told, *rejected = text.split("*Rejected:*")
    assert len(rejected) == 1, title
    assert len(re.sub(r"^\|.*$", "", told, flags=re.MULTILINE).split()) <= MOST_WORDS


def test_each_command_is_told() -> None:
    group: Any = typer.main.get_command(app)
    told = set(re.findall(r"`diloco (\w+)", (DOCS / "reference/commands.md").read_text(encoding="utf-8")))
    assert told == set(group.commands)
