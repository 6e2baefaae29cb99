"""What every script has in common that writes files from what the code says, or checks that they are up to date."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


class SourceError(ValueError):
    """Nothing can be made; the text says why, for people."""


def main(make: Callable[[], Mapping[Path, str]], command: str) -> int:
    """Write what is made, or with ``--check`` compare it with what is there; the exit code.

    Args:
        make: every file's path and content. Raises ``SourceError`` where it cannot.
        command: how to write them, for the message that they are stale.
    """
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(f"usage: python scripts/{Path(sys.argv[0]).name} [--check]", file=sys.stderr)
        return 2
    try:
        made = make()
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments:
        for place, text in made.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        return 0
    stale = [place for place, text in made.items() if not place.is_file() or place.read_text(encoding="utf-8") != text]
    for place in stale:
        print(f"{place.relative_to(REPOSITORY)} is not what it is made from: run `{command}`", file=sys.stderr)
    return 1 if stale else 0


def between_marks(page: Path, word: str, text: str) -> str:
    """A page's text, with ``text`` between ``<!-- word: begin -->`` and its end.

    Raises:
        SourceError: the page has no such marks.
    """
    marked = re.compile(rf"(<!-- {word}: begin[^\n]*-->\n).*(<!-- {word}: end -->\n)", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    if marked.search(old) is None:
        raise SourceError(f"{page}: has no '<!-- {word}: begin -->' and end to write between")
    return marked.sub(lambda found: f"{found[1]}{text}{found[2]}", old)


def with_tables(page: Path, word: str, tables: Mapping[str, Callable[[Any], Iterable[str]]], source: object) -> str:
    """A page's text, with its tables anew: lines between ``<!-- word: TABLE -->`` and ``<!-- word: end -->``.

    Raises:
        SourceError: the page asks for a table that is not made.
    """
    marked = re.compile(rf"(<!-- {word}: (\w+)[^\n]*-->\n).*?(<!-- {word}: end -->\n)", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    unknown = {found[2] for found in marked.finditer(old)} - tables.keys()
    if unknown:
        raise SourceError(f"{page}: asks for table {min(unknown)}; use {', '.join(tables)}")
    return marked.sub(lambda found: f"{found[1]}\n" + "\n".join(tables[found[2]](source)) + f"\n\n{found[3]}", old)


def cell(text: str) -> str:
    """The text of one cell of a Markdown table."""
    return text.replace("|", "\\|")
