"""Golden files: reviewed outputs that the current outputs must equal.

``DILOCO_REWRITE_GOLDEN=1`` in the environment rewrites them, so that the change can be reviewed.
"""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
REWRITE_VARIABLE = "DILOCO_REWRITE_GOLDEN"


def assert_golden(text: str, name: str) -> None:
    """Check that ``text`` equals the file ``name`` below ``tests/golden``."""
    path = GOLDEN / name
    if os.environ.get(REWRITE_VARIABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is not there; {REWRITE_VARIABLE}=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path} has changed; {REWRITE_VARIABLE}=1 rewrites it"
