"""Golden files: reviewed outputs that the current outputs must equal, or that the current version must read.

``DILOCO_REWRITE_GOLDEN=1`` in the environment rewrites them, so that the change can be reviewed. The files of a version
(``golden/VERSION/``) are rewritten by that version alone: what is released stays as it was written.
"""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VERSIONS = ("0.1.0",)
"""Versions whose files are read, and from which a job is upgraded."""
REWRITE_VARIABLE = "DILOCO_REWRITE_GOLDEN"


def rewrites_golden() -> bool:
    """Whether golden files are to be rewritten."""
    return bool(os.environ.get(REWRITE_VARIABLE))


def assert_golden(text: str, name: str) -> None:
    """Check that ``text`` equals the file ``name`` below ``tests/golden``."""
    path = GOLDEN / name
    if rewrites_golden():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is not there; {REWRITE_VARIABLE}=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path} has changed; {REWRITE_VARIABLE}=1 rewrites it"
