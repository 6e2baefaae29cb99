"""Writes the CustomResourceDefinition of DiLoCoJob from the models: into crds/, and the same bytes into the chart.

python scripts/generate_crd.py            # write both
python scripts/generate_crd.py --check    # fail if one is not what the models say
"""

import sys
from typing import Any

import yaml
from generated import REPOSITORY, main

from diloco.spec.crd.definition import NAME, custom_resource_definition

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


if __name__ == "__main__":
    sys.exit(main(lambda: dict.fromkeys(PLACES, text()), COMMAND))
