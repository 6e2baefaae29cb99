"""Writes the lists of conditions and reasons in docs/how-to/operations.md from the operator's own texts.

python scripts/generate_reasons.py            # write them
python scripts/generate_reasons.py --check    # fail if they are not what the operator says
"""

import re
import sys
from collections.abc import Iterator, Mapping

from generated import REPOSITORY, between_marks, main

from diloco_operator.decide.guide import Guide
from diloco_operator.decide.guide.of_causes import CAUSES
from diloco_operator.decide.guide.of_states import STATES
from diloco_operator.decide.reasons import CONDITION_MEANINGS, Reason

PAGE = REPOSITORY / "docs/how-to/operations.md"
COMMAND = "make reasons"
PROCEDURE = re.compile(r"'([A-Z]\w* [^']+)'(?: below)?")


def lists() -> str:
    """All lists, as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from ("", "What it means if a condition is True:", "")
    for name, meaning in CONDITION_MEANINGS.items():
        yield f"- **{name}**: {meaning}"
    yield from ("", "### Reasons", "", "Of Degraded, the most serious first. Their events are of type Warning.", "")
    yield from _list(CAUSES, mark="")
    yield from (
        "",
        "Of other conditions, and of events; those without anything to do are left out. ⚠: a Warning.",
        "",
    )
    yield from _list(STATES, mark=" ⚠")
    yield from ("", "")


def _list(reasons: Mapping[Reason, Guide], mark: str) -> Iterator[str]:
    """A line for each reason with something to do; ``mark`` follows those whose event is a warning."""
    for reason, guide in reasons.items():
        if not guide.action:
            continue
        marked = mark if guide.severity == "Warning" else ""
        yield f"- `{reason}`{marked}: {guide.meaning} **Do:** {PROCEDURE.sub(_link, guide.action)}"


def _link(named: re.Match[str]) -> str:
    """A link to a procedure of the page; texts of conditions and events name it in quotes."""
    return f"[{named[1]}](#{named[1].lower().replace(' ', '-')})"


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: between_marks(PAGE, "reasons", lists())}, COMMAND))
