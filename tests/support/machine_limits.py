"""A machine that is short of something, for real: no file left to open, no room on a disk."""

import os
import resource
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def full_disk(folder: Path, holding: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A file system of its own in ``folder``, with the files of ``holding`` on it and no byte free."""
    mount = folder / "full-disk"
    mount.mkdir(exist_ok=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        for name, content in (holding or {}).items():
            (mount / name).write_text(content)
        with (mount / "filling").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        yield mount
    finally:
        # Lazily: a file that the code under test left open must not leave the mount behind for later tests.
        subprocess.run(["umount", "--lazy", mount], check=True)
