"""Files that say what an output was when somebody last looked at it.

``DILOCO_REWRITE_GOLDEN=1`` in the environment writes them anew; the change is then for the reviewer to judge.
"""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
REWRITE_VARIABLE = "DILOCO_REWRITE_GOLDEN"


def assert_golden(text: str, name: str) -> None:
    """``text`` is what the file ``name`` below ``tests/golden`` holds."""
    path = GOLDEN / name
    if os.environ.get(REWRITE_VARIABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is not there; {REWRITE_VARIABLE}=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"{path} has changed; {REWRITE_VARIABLE}=1 rewrites it"
