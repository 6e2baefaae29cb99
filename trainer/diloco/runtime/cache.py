"""The folder of what can be made again, which the processes of a machine share."""

import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "DILOCO_CACHE"


def cache_folder(otherwise: Path | None = None) -> Path:
    """The folder that ``DILOCO_CACHE`` names, or ``otherwise``, or one in the home directory.

    A user that has none, as an arbitrary one in a container, gets one in the working directory.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if otherwise is not None:
        return otherwise
    try:
        home = Path.home()
    except RuntimeError:
        home = Path.cwd()
    return home / ".cache" / "diloco"
