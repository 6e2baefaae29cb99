"""Writes docs/reference/manifest.md and world.md, the references of every field of both files, from their models.

python scripts/generate_reference.py            # write it
python scripts/generate_reference.py --check    # fail if it is not what the models say
"""

import json
import re
import sys
from collections.abc import Iterator

from generated import REPOSITORY, main

from diloco.spec.base import PUBLISHED_TYPE
from diloco.spec.crd.immutability import MUTABLE, MUTABLE_SUSPENDED, MUTABLE_UNMADE
from diloco.spec.reading.translate import job_schema
from diloco.spec.words import Schema, SchemaReader, listed
from diloco.world.reading import world_schema

PAGE = REPOSITORY / "docs/reference/manifest.md"
WORLD_PAGE = REPOSITORY / "docs/reference/world.md"
COMMAND = "make reference"

INTRODUCTION = f"""\
# The manifest

<!-- Made from trainer/diloco/spec by `{COMMAND}`; do not edit. -->

Every field of a `DiLoCoJob`. `diloco validate JOB.yaml` checks a manifest and names every problem with its path.
Unknown fields, duplicate keys and values of another type than the one named here are refused. A default stands in
brackets behind the value. A name has lower-case letters, digits and inner hyphens. How long texts and lists may be is
said by `diloco validate` and in the custom resource.

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

What the operator reports in `status`; a manifest needs none. `kubectl explain dilocojob.status --recursive` lists the
fields, and without `--recursive` describes those of one level. Fields of which nothing is known yet are absent. Numbers
with a fraction are text, as everywhere in Kubernetes.
"""
LENGTHS = re.compile(r"(, at most \d+ characters| of \d+ to \d+ (characters|items|keys)| of lower-case letters, .*)$")

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
    return "".join([WORLD, *_sections(world_schema())])


def page() -> str:
    """The whole page, as Markdown."""
    return "".join([INTRODUCTION, *_sections(job_schema()), STATUS])


def _sections(reader: SchemaReader) -> Iterator[str]:
    """One section for each mapping with fields of its own, in the manifest's order; equal ones share one."""
    waiting: list[tuple[str, Schema]] = [("", reader.node(()))]
    places: dict[str, list[str]] = {}
    while waiting:
        path, node = waiting.pop(0)
        fields = _listed(reader, node)
        places.setdefault(fields, []).append(path)
        if len(places[fields]) > 1:
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
    for fields, (first, *others) in places.items():
        also = f"Also {listed((f'`{other}`' for other in others), 'and')}.\n\n" if others else ""
        yield f"\n## {f'`{first}`' if first else 'Top level'}\n\n{also}{fields}"


def _listed(reader: SchemaReader, node: Schema) -> str:
    """The fields of one mapping, a line each. Of a field with a section of its own, the section says what it holds."""
    lines = []
    undescribed = []
    for name, field in node["properties"].items():
        resolved = reader.resolved(field)
        words = resolved.get("description", "")
        if not words:
            undescribed.append(f"`{name}`")
            continue
        default = "required" if name in node.get("required", ()) else _default(field.get("default"), resolved)
        value = "" if "properties" in resolved else f", {LENGTHS.sub('', reader.allowed(resolved))}"
        lines.append(_line(f"- `{name}`{value}{f' ({default})' if default else ''}. {words}"))
    if undescribed:
        lines.append(f"- {listed(undescribed, 'and')}, as in Kubernetes.")
    return "\n".join(lines) + "\n"


def _default(default: object, node: Schema) -> str:
    if node.get("type") == "object" and "properties" in node:
        return ""
    if default in (None, "", [], {}):
        return ""
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: page(), WORLD_PAGE: world_page()}, COMMAND))
