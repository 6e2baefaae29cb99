"""Writes the CustomResourceDefinition of DiLoCoJob from the models: into crds/, and the same bytes into the chart.

python scripts/generate_crd.py            # write both
python scripts/generate_crd.py --check    # fail if one is not what the models say
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from diloco.spec.crd import NAME, custom_resource_definition

REPOSITORY = Path(__file__).resolve().parent.parent
PLACES = (
    REPOSITORY / "crds" / f"{NAME}.yaml",
    # A chart can read only files of its own.
    REPOSITORY / "charts" / "diloco-operator" / "files" / f"{NAME}.yaml",
)
COMMAND = "make crd"
HEADER = f"# Made from trainer/diloco/spec by `{COMMAND}` (scripts/generate_crd.py); do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Writes equal parts out in full: an alias is no help to who reads it."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whether ``data`` never becomes an alias."""
        del data
        return True


def text() -> str:
    """The whole file, as YAML."""
    dumped = yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True, indent=2
    )
    return f"{HEADER}---\n{dumped}"


def main(arguments: list[str]) -> int:
    """Write or check the files; the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python scripts/generate_crd.py [--check]", file=sys.stderr)
        return 2
    made = text()
    if not arguments:
        for place in PLACES:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(made, encoding="utf-8")
        return 0
    stale = [place for place in PLACES if not place.is_file() or place.read_text(encoding="utf-8") != made]
    for place in stale:
        print(f"{place.relative_to(REPOSITORY)} is not what the models say: run `{COMMAND}`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
