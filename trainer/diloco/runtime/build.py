"""Which build a process runs: for /metrics, /status and ``--version``."""

import os
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from diloco import __version__

COMMIT: Final = "DILOCO_COMMIT"
"""Set in the project's images: the commit that they were built from."""
PACKED: Final = "commit"
"""File of the package with the commit that it was packed from; absent in a checkout."""


def show_build(registry: CollectorRegistry) -> None:
    """Serve version and commit of this process."""
    text = "1; version and commit of the program (the commit is empty if it is not known)."
    made = Gauge("diloco_build_info", text, ["version", "commit"], registry=registry)
    made.labels(__version__, commit()).set(1)


def commit() -> str:
    """The commit that the image or the package was built from; empty if it is not known."""
    return os.environ.get(COMMIT) or _packed()


def _packed() -> str:
    try:
        return (Path(__file__).parents[1] / PACKED).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def version_text() -> str:
    """The version, and the commit if it is known."""
    return f"{__version__} ({commit()})" if commit() else __version__
