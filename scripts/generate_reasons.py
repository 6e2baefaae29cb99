"""Writes the tables of conditions and reasons in docs/operations.md, from the operator's own.

python scripts/generate_reasons.py            # write them
python scripts/generate_reasons.py --check    # fail if they are not what the operator says
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from diloco_operator.reasons import CONDITION_MEANINGS, GUIDE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"
COMMAND = "make reasons"
MARKED = re.compile(r"(<!-- reasons: begin[^\n]*-->\n).*(<!-- reasons: end -->\n)", re.DOTALL)


def tables() -> str:
    """Both tables, as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from ("", "| condition | True means |", "|---|---|")
    for name, meaning in CONDITION_MEANINGS.items():
        yield f"| {name} | {meaning} |"
    yield from ("", "### Reasons", "")
    yield "⚠: its event is of type Warning. Of several the gravest is told first; they stand in that order here."
    yield from ("", "| reason | meaning | what to do |", "|---|---|---|")
    for reason, guide in GUIDE.items():
        mark = " ⚠" if guide.severity == "Warning" else ""
        yield f"| `{reason}`{mark} | {_cell(guide.meaning)} | {_cell(guide.action)} |"
    yield from ("", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python scripts/generate_reasons.py [--check]", file=sys.stderr)
        return 2
    page = PAGE.read_text(encoding="utf-8")
    if MARKED.search(page) is None:
        print(f"{PAGE}: has no '<!-- reasons: begin -->' and end to write between", file=sys.stderr)
        return 1
    made = MARKED.sub(lambda found: f"{found[1]}{tables()}{found[2]}", page)
    if not arguments:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if page == made:
        return 0
    print(f"docs/operations.md is not what the operator says: run `{COMMAND}`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
