"""Which checkpoints are in a directory, which of them are kept, and which were set aside because they are damaged.

Checkpoints share the files of fragments that have not changed between them, so one damaged file may spoil several. The
newest is kept, and before it those that share no file with each other.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from diloco.syncer.disk.fragment_file import SUFFIX

_NAME = re.compile(r"^\d{6,}$")
_BROKEN = ".broken"


def checkpoint_names(directory: Path) -> list[str]:
    """Names of the checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path.name for path in directory.iterdir() if _NAME.match(path.name)), key=int)


def has_had_checkpoints(directory: Path) -> bool:
    """Whether there are checkpoints, or broken ones that were set aside."""
    return bool(checkpoint_names(directory) or _set_aside_before(directory))


def last_number(directory: Path) -> int:
    """The highest number that a checkpoint here has or had: tapes name checkpoints, so a number must not be reused."""
    aside = [number for number, _ in _set_aside_before(directory)]
    return max([*(int(name) for name in checkpoint_names(directory)), *aside], default=0)


def prune_checkpoints(directory: Path, keep: int, protected: frozenset[str]) -> None:
    """Delete all checkpoints but the newest, and the newest ``keep`` that share no file with the one before.

    Those in ``protected`` are neither deleted nor counted.

    Raises:
        OSError: one could not be deleted.
    """
    names = [name for name in checkpoint_names(directory) if name not in protected]
    apart: list[str] = []
    before: set[int] = set()
    for name in names:
        files = {path.stat().st_ino for path in (directory / name).glob(f"*{SUFFIX}")}
        if files.isdisjoint(before):
            apart.append(name)
            before = files
    for name in sorted({*names} - {*names[-1:], *apart[-keep:]}, key=int):
        # Renamed first, so that a partly deleted one is never taken for a checkpoint.
        to_delete = directory / f".{name}.part"
        (directory / name).rename(to_delete)
        shutil.rmtree(to_delete)


def clear_leftovers(directory: Path) -> None:
    """Delete what a killed process has left of a checkpoint that it was writing or deleting."""
    for path in directory.glob(".*.part") if directory.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def set_aside(directory: Path, broken: Iterable[str]) -> None:
    """Rename broken checkpoints to ``NNNNNN.broken``, and delete all of these but the one with the highest number.

    That one is for inspection, and keeps its number from being used again.

    Raises:
        OSError: one could not be renamed.
    """
    for name in broken:
        (directory / name).rename(directory / f"{name}{_BROKEN}")
    for _, old in sorted(_set_aside_before(directory))[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def _set_aside_before(directory: Path) -> list[tuple[int, Path]]:
    found = directory.glob(f"*{_BROKEN}") if directory.is_dir() else ()
    return [(int(name), path) for path in found if _NAME.match(name := path.name.removesuffix(_BROKEN))]
