"""Writes docs/manifest.md, the reference of every field of a DiLoCoJob, from the models themselves.

python scripts/generate_reference.py            # write it
python scripts/generate_reference.py --check    # fail if it is not what the models say
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from diloco.spec.translate import job_schema
from diloco.spec.words import Schema

PAGE = Path(__file__).resolve().parent.parent / "docs" / "manifest.md"
COMMAND = "make reference"

INTRODUCTION = f"""\
# The manifest

<!-- Made from trainer/diloco/spec by `{COMMAND}`; do not edit. -->

Every field of a `DiLoCoJob`. `diloco validate JOB.yaml` checks a manifest and names every problem with its path.
Unknown fields, duplicate keys and values of another type than the one named here are refused.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return INTRODUCTION + "".join(_sections())


def _sections() -> Iterator[str]:
    """One section for each mapping with fields of its own, in the manifest's order."""
    reader = job_schema()
    waiting: list[tuple[str, Schema]] = [("", reader.node(()))]
    while waiting:
        path, node = waiting.pop(0)
        yield _section(path, node)
        inner = []
        for name, field in node["properties"].items():
            place, resolved = f"{path}.{name}".lstrip("."), reader.resolved(field)
            if resolved.get("type") == "array":
                place, resolved = f"{place}[]", reader.resolved(resolved.get("items", {}))
            if "properties" in resolved:
                inner.append((place, resolved))
        waiting = inner + waiting


def _section(path: str, node: Schema) -> str:
    reader = job_schema()
    rows = ["| field | value | default | |", "|---|---|---|---|"]
    for name, field in node["properties"].items():
        resolved = reader.resolved(field)
        default = "required" if name in node.get("required", ()) else _default(field.get("default"), resolved)
        words = resolved.get("description", "")
        rows.append(f"| `{name}` | {_cell(reader.allowed(resolved))} | {_cell(default)} | {_cell(words)} |")
    return f"\n## {f'`{path}`' if path else 'Top level'}\n\n" + "\n".join(rows) + "\n"


def _default(default: object, node: Schema) -> str:
    if node.get("type") == "object" and "properties" in node:
        return ""
    if default in (None, "", [], {}):
        return ""
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python scripts/generate_reference.py [--check]", file=sys.stderr)
        return 2
    made = page()
    if not arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    print(f"docs/manifest.md is not what the models say: run `{COMMAND}`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
