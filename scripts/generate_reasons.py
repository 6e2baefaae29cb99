"""Writes the tables of conditions and reasons in docs/operations.md from the operator's own texts.

python scripts/generate_reasons.py            # write them
python scripts/generate_reasons.py --check    # fail if they are not what the operator says
"""

import re
import sys
from collections.abc import Iterator

from generated import REPOSITORY, SourceError, cell, main

from diloco_operator.decide.guide import GUIDE
from diloco_operator.decide.reasons import CONDITION_MEANINGS

PAGE = REPOSITORY / "docs" / "operations.md"
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
    yield "⚠: the event is of type Warning. If several apply, the most serious comes first, in the order of this table."
    yield from ("", "| reason | meaning | what to do |", "|---|---|---|")
    for reason, guide in GUIDE.items():
        mark = " ⚠" if guide.severity == "Warning" else ""
        yield f"| `{reason}`{mark} | {cell(guide.meaning)} | {cell(guide.action)} |"
    yield from ("", "")


def page() -> str:
    """The page that is there, with the tables anew."""
    old = PAGE.read_text(encoding="utf-8")
    if MARKED.search(old) is None:
        raise SourceError(f"{PAGE}: has no '<!-- reasons: begin -->' and end to write between")
    return MARKED.sub(lambda found: f"{found[1]}{tables()}{found[2]}", old)


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: page()}, COMMAND))
