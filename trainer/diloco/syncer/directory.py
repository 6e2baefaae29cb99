"""The syncer's directory: where everything is, who may use it, and which life of the syncer this is.

It must not know what stands in checkpoints and tapes.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from diloco.runtime.files import make_writable_directory, write_atomically
from diloco.syncer.errors import SyncerError
from diloco.syncer.tape import find_tapes


class SyncerDirectory:
    """The directory of one job's syncer, locked against a second one while it is open."""

    def __init__(self, root: Path) -> None:
        """Make the directory if need be, and lock it.

        Raises:
            UnusableFileError: it cannot be written to.
            SyncerError: another syncer uses it.
        """
        make_writable_directory(root, even_if_full=True)
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.tape = root / "tape"
        self.payloads = root / "payloads"
        self.endpoint = root / "endpoint.json"
        self.model = root / "model.safetensors"
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise SyncerError(f"{root}: another syncer is using this directory") from error

    def begin_epoch(self) -> int:
        """Number of this life of the syncer, one more than any before; on disk before it is used.

        Where the file is lost, the tapes still tell: an epoch that comes twice would let stale learners in.

        Raises:
            OSError: it could not be written.
        """
        path = self.root / "epoch"
        try:
            last = int(path.read_text().strip())
        except (OSError, ValueError):
            last = 0
        epoch = max([last, *(tape.epoch for tape in find_tapes(self.tape))]) + 1
        try:
            write_atomically(path, f"{epoch}\n")
        except OSError:
            if not last:
                raise
            # No room for another file. The one there has its block on the disk, and a few bytes are written whole.
            _overwrite(path, f"{epoch}\n".encode())
        return epoch

    def close(self) -> None:
        """Let another syncer have it."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _overwrite(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)  # never shorter than what was there: the number grows
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
