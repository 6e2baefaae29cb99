"""Tells the program that started this one its last error, in a file, so that no one has to parse a log for it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from diloco.runtime.files import open_regular

VARIABLE: Final = "DILOCO_LAST_ERROR_FILE"
"""Environment variable with the file's path; without it nothing is written."""
_MOST_CHARACTERS: Final = 4096


def write_last_error(text: str) -> None:
    """Replace the file's content by ``text``, which may come from anywhere. If it cannot be written, it is lost."""
    if path := os.environ.get(VARIABLE):
        with suppress(OSError):
            Path(path).write_text(text[:_MOST_CHARACTERS], encoding="utf-8", errors="replace")


def read_last_error(path: Path) -> str:
    """The last error, or nothing where there was none or it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(4 * _MOST_CHARACTERS).decode(errors="replace")[:_MOST_CHARACTERS].strip()
    except OSError:
        return ""
