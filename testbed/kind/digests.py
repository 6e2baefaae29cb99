"""Digests that name what was built by what it was built from. Pure but for reading the files they are of."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

_DIGITS = 12
_NO_SOURCES = ("__pycache__", ".egg-info", ".pyc")


def digest_of(parts: Mapping[str, bytes]) -> str:
    """A short digest of named contents; their order does not count, names and borders do."""
    total = hashlib.sha256()
    for name in sorted(parts):
        for piece in (name.encode(), parts[name]):
            total.update(len(piece).to_bytes(8, "big"))
            total.update(piece)
    return total.hexdigest()[:_DIGITS]


def contents(root: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """Every source file at or below ``root / path``, by its path from ``root``. What is not there is left out."""
    files: list[Path] = []
    for path in paths:
        start = root / path
        files += [start] if start.is_file() else sorted(start.rglob("*"))
    return {str(file.relative_to(root)): file.read_bytes() for file in files if file.is_file() and _is_source(file)}


def _is_source(file: Path) -> bool:
    return not any(part.endswith(_NO_SOURCES) for part in file.parts)
