"""Opens plain text; by default the standard library sources of the running Python, so that nothing is downloaded.

Installed packages, tests and test data are left out of these, so they are the same for every installation of one
version of Python.
"""

import os
import sysconfig
from fnmatch import fnmatchcase
from pathlib import Path

from diloco.learner.data.source import DataError
from diloco.learner.data.text import ByteText, Document, find_documents, ordered, problem_of_bytes
from diloco.spec.training import TextData

_FIELD = "data.text"
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library() -> tuple[Document, ...]:
    """The sources, in the order of a hash of their paths.

    Raises:
        DataError: this Python was installed without sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _LEFT_OUT  # else it goes through all that is installed
        paths = (Path(folder, name) for name in names if name.endswith(".py"))
        files += [(path.relative_to(root).as_posix(), path) for path in paths if path.is_file()]
    if not files:
        raise DataError(f"{_FIELD}: this Python has no standard library sources in {root}; use data.text.path")
    return ordered(files, _FIELD, problem_of_bytes)


def open_text(text: TextData) -> ByteText:
    """Plain files, or the default corpus, as byte tokens.

    Raises:
        DataError: they are missing or empty.
    """
    if text.path is None:
        return ByteText(standard_library())

    def is_read(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in text.include)

    patterns = ", ".join(text.include)
    return ByteText(find_documents(Path(text.path), is_read, patterns, f"{_FIELD}.path", problem_of_bytes))
