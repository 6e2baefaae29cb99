"""Writes docs/reference/manifest.md and world.md, the references of every field of both files, from their models.

python scripts/generate_reference.py            # write it
python scripts/generate_reference.py --check    # fail if it is not what the models say
"""

import json
import sys
from collections.abc import Iterator

from generated import REPOSITORY, cell, main

from diloco.spec.base import PUBLISHED_TYPE
from diloco.spec.crd.immutability import MUTABLE, MUTABLE_SUSPENDED, MUTABLE_UNMADE
from diloco.spec.reading.translate import job_schema
from diloco.spec.status.job import JobStatus
from diloco.spec.words import Schema, SchemaReader, listed
from diloco.world.reading import world_schema

PAGE = REPOSITORY / "docs/reference/manifest.md"
WORLD_PAGE = REPOSITORY / "docs/reference/world.md"
COMMAND = "make reference"

INTRODUCTION = f"""\
# The manifest

<!-- Made from trainer/diloco/spec by `{COMMAND}`; do not edit. -->

Every field of a `DiLoCoJob`. `diloco validate JOB.yaml` checks a manifest and names every problem with its path.
Unknown fields, duplicate keys and values of another type than the one named here are refused.

In a cluster the same manifest is applied with `kubectl`; the API server makes the same checks, except those inside pod
settings, which the operator makes (`InvalidSpec`). Once the job exists, regions and pools can be added and removed
([how](../how-to/tasks.md#add-or-remove-a-pool-or-a-region)), and these fields can be changed at any time:

{"".join(f"- `{field}`{chr(10)}" for field in sorted(MUTABLE))}
These can be changed while the job is suspended, together with suspending it, or with resuming it:

{"".join(f"- `{field}`{chr(10)}" for field in sorted(MUTABLE_SUSPENDED))}
And these until the syncer's claim exists, for example because a quota does not allow its size:

{"".join(f"- `{field}`{chr(10)}" for field in sorted(MUTABLE_UNMADE))}"""

STATUS = """
## The status

What the operator reports in `status`. Nothing else writes it, and a manifest needs none. Fields of which nothing is
known yet are absent. Numbers with a fraction are text, as everywhere in Kubernetes.
"""

WORLD = f"""\
# The world file

<!-- Made from trainer/diloco/world by `{COMMAND}`; do not edit. -->

What decides how a job goes and is not in its manifest: links, step times, failures and prices. `diloco plan` and
[`diloco simulate`](../how-to/simulate.md) read it with `--world`, and `diloco world` writes that of a run. Every field
has a default, so a file names only what is known. A mistake is reported with its line, its value and what is allowed.

```yaml
regions:
  "*":                       # every region
    roundTripSeconds: 0.03
    pools:
      "*": {{stepSeconds: 0.5, chipInterruptionHours: 8766}}
  us-west:                   # goes before what every region says
    link: 1Gbit/s
    pricePerGB: 0.02
    pools:
      old: {{stepSeconds: 0.9, preemptionsPerHour: 0.05, pricePerHour: 1.1}}
syncer: {{link: 10Gbit/s}}
```

`--link REGION=RATE,RTT` is short for `link` and `roundTripSeconds`, `--link syncer=RATE` for `syncer.link`, and `--step
REGION/POOL=SECONDS` for `stepSeconds`. Beside a file they change what it says.
"""


def world_page() -> str:
    """The page of the world file, as Markdown."""
    return "".join([WORLD, *_sections(world_schema(), "", written=True)])


def page() -> str:
    """The whole page, as Markdown."""
    status = SchemaReader(JobStatus.model_json_schema())
    fields = _sections(job_schema(), "", written=True)
    return "".join([INTRODUCTION, *fields, STATUS, *_sections(status, "status", written=False)])


def _sections(reader: SchemaReader, root: str, *, written: bool) -> Iterator[str]:
    """One section for each mapping with fields of its own, in the manifest's order; equal ones share one."""
    waiting: list[tuple[str, Schema]] = [(root, reader.node(()))]
    places: dict[str, list[str]] = {}
    while waiting:
        path, node = waiting.pop(0)
        table = _table(reader, node, written=written)
        places.setdefault(table, []).append(path)
        if len(places[table]) > 1:
            continue
        inner = []
        for name, field in node["properties"].items():
            place, resolved = f"{path}.{name}".lstrip("."), reader.resolved(field)
            if resolved.get("type") == "array":
                place, resolved = f"{place}[]", reader.resolved(resolved.get("items", {}))
            elif isinstance(each := resolved.get("additionalProperties"), dict):
                place, resolved = f"{place}.NAME", reader.resolved(each)
            if "properties" in resolved and PUBLISHED_TYPE not in resolved:
                inner.append((place, resolved))
        waiting = inner + waiting
    for table, (first, *others) in places.items():
        also = f"Also {listed((f'`{other}`' for other in others), 'and')}.\n\n" if others else ""
        yield f"\n## {f'`{first}`' if first else 'Top level'}\n\n{also}{table}"


def _table(reader: SchemaReader, node: Schema, *, written: bool) -> str:
    """The fields of one mapping; with defaults where it is written by a user."""
    rows = (
        ["| field | value | default | |", "|---|---|---|---|"] if written else ["| field | value | |", "|---|---|---|"]
    )
    undescribed = []
    for name, field in node["properties"].items():
        resolved = reader.resolved(field)
        default = "required" if name in node.get("required", ()) else _default(field.get("default"), resolved)
        words = resolved.get("description", "")
        if not words:
            undescribed.append(f"`{name}`")
            continue
        cells = [f"`{name}`", reader.allowed(resolved), *([default] if written else []), words]
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    if undescribed:
        rows.append(f"| {listed(undescribed, 'and')} | as in Kubernetes |  |  |")
    return "\n".join(rows) + "\n"


def _default(default: object, node: Schema) -> str:
    if node.get("type") == "object" and "properties" in node:
        return ""
    if default in (None, "", [], {}):
        return ""
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(cell(text.replace("``", "`")).split())


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: page(), WORLD_PAGE: world_page()}, COMMAND))
