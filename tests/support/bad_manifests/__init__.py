"""Every way a manifest can be wrong, and what ``diloco`` and an API server say of it. The cases are in YAML files."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.tenants import wide


class Bad(NamedTuple):
    """One way to be wrong."""

    changes: dict[str, object]
    """What is changed in a good manifest; see `job_manifests.changed`."""
    line: str
    """What ``diloco`` prints: the field, a colon, and what is wrong."""
    server: str = ""
    """What an API server says of that field. Empty: it refuses the manifest, and in other words."""
    at: str = ""
    """The field that an API server names, if it is another."""


class Wrong(NamedTuple):
    """A wrong value in a pool, and what is said of it."""

    pool: dict[str, Any]
    place: str
    says: str


SAME = "as diloco"
"""The server refuses it by a rule of ours, in CEL, with the same text."""
LEARNERS_POOL = "spec.regions[0].pools[0]"
_ENV, _LABELS = "spec.regions.0.pools.0.env", "spec.regions.0.pools.0.podTemplate.spec.nodeSelector"
_IMAGE = "use an image such as registry.example.com/team/trainer:1.0, at most 1024 characters"
_LONG = (
    Bad({"spec.image": "x" * 1025}, f'spec.image: "{"x" * 56}... is too long; {_IMAGE}', "may not be more than 1024"),
    Bad(
        {_ENV: [{"name": "A"}] * 257},
        f"{LEARNERS_POOL}.env: a list of 257 is too long; use a list of 0 to 256 items",
        "must have at most 256 items",
    ),
    Bad(
        {_LABELS: {f"label-{n}": "" for n in range(65)}},
        f"{LEARNERS_POOL}.podTemplate.spec.nodeSelector: a mapping is too long; use a mapping of 0 to 64 keys",
        "must have at most 64 items",
    ),
    Bad({"spec.regions": wide(5, 52)}, "spec.regions: have 260 pools in all; use at most 256", SAME),
)


def _read(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


CASES = (*(Bad(**one) for one in (*_read("fields"), *_read("rules"))), *_LONG)
PODS = tuple(Wrong(**one) for one in _read("pods"))
