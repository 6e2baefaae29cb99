"""Writes the table of values in the chart's README, from the comments in its values.yaml.

python scripts/generate_chart_values.py            # write it
python scripts/generate_chart_values.py --check    # fail if it is not what values.yaml says, or a value has no comment
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from generated import REPOSITORY, SourceError, cell, main

CHART = REPOSITORY / "charts" / "diloco-operator"
VALUES = CHART / "values.yaml"
PAGE = CHART / "README.md"
COMMAND = "make chart-values"
BEGIN = f"<!-- Made from values.yaml by `{COMMAND}`; do not edit. -->\n"
END = "<!-- Until here. -->\n"


@dataclass(frozen=True)
class Value:
    """One line of the table."""

    path: str
    words: str
    """Its comment; empty where there is none."""
    default: Any
    """None for a mapping whose members have lines of their own."""


def values(text: str) -> list[Value]:
    """Everything in ``text`` that can be set, in its order."""
    top = yaml.compose(text)
    return list(_members(top, text.splitlines(), "")) if top is not None else []


def _members(mapping: yaml.Node, lines: list[str], above: str) -> Iterator[Value]:
    for key, node in mapping.value:
        path = f"{above}.{key.value}".lstrip(".")
        members = node.value if isinstance(node, yaml.MappingNode) else []
        has_members = bool(members) and bool(_comment(lines, members[0][0]))
        default = None if has_members else yaml.safe_load(yaml.serialize(node))
        yield Value(path, _comment(lines, key), default)
        if has_members:
            yield from _members(node, lines, path)


def _comment(lines: list[str], key: yaml.Node) -> str:
    """The comment right above a key."""
    found: list[str] = []
    for line in reversed(lines[: key.start_mark.line]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, line.strip().removeprefix("#").strip())
    return " ".join(found)


def table(rows: list[Value]) -> str:
    """The rows as Markdown."""
    lines = ["| value | default | |", "|---|---|---|"]
    lines += [f"| `{row.path}` | {_default(row)} | {cell(row.words)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _default(row: Value) -> str:
    return "" if row.default is None else f"`{cell(json.dumps(row.default))}`"


def page() -> str:
    """The page that is there, with the table anew."""
    rows = values(VALUES.read_text(encoding="utf-8"))
    silent = [row.path for row in rows if not row.words]
    if silent:
        raise SourceError(f"{VALUES.name}: no comment above {', '.join(silent)}")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: page()}, COMMAND))
