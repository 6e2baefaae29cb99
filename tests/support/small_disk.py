"""A file system that is full as soon as a test wants it to be."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[Path]:
    """A file system of its own at ``folder``, which is made; the test is skipped where it cannot be mounted."""
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Filler:
    """A file that takes whatever room is left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> bool:
        with self.path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        return True
