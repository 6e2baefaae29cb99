"""A machine with a real shortage: no file left to open, no room on a disk."""

import os
import resource
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process can open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """This process can write no longer file, as on a disk that runs full in the middle of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def block(folder: Path) -> None:
    """Nothing can be read from this folder or written into it from now on: a file is in its place."""
    folder.rename(folder.with_name("away"))
    folder.write_text("in the way")


def unblock(folder: Path) -> None:
    """It is there again, with what was in it."""
    folder.unlink()
    folder.with_name("away").rename(folder)


def open_files() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    """A file system of its own in ``folder``; the test is skipped where none can be mounted."""
    mount = folder / "disk"
    mount.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(mount)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        # Lazily: a file that the code under test left open must not leave the mount behind for later tests.
        subprocess.run(["umount", "--lazy", mount], check=True)


class Filler:
    """A file that takes whatever room is left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> bool:
        """Always true, for conditions."""
        with self.path.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        return True


@contextmanager
def full_disk(folder: Path, holding: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A file system of its own in ``folder``, with the files of ``holding`` on it and no byte free."""
    with small_disk(folder, 64) as disk:
        for name, content in (holding or {}).items():
            (disk / name).write_text(content)
        Filler(disk / "filling").fill()
        yield disk
