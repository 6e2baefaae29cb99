"""The folder of what can be made again, which the processes of a machine share."""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "DILOCO_CACHE"


def cache_folder(otherwise: Path | None = None) -> Path:
    """The folder that ``DILOCO_CACHE`` names; without it ``otherwise``, or one in the home directory."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return otherwise or Path(os.path.expanduser("~/.cache/diloco"))  # noqa: PTH111  # which raises without a home
