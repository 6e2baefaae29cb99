"""The syncer's directory: its layout, its lock, and the epoch of the syncer process that uses it."""

import errno
import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from diloco.runtime.files import make_writable_directory, open_regular, write_atomically
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_UNEXPECTED
from diloco.spec.status import curves, syncer
from diloco.syncer.errors import SyncerError
from diloco.syncer.reporting.decisions import JOURNAL
from diloco.tape.segments import find_tapes

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of ``flock`` on a file system without locks."""


_ID_BYTES = 16
_ID = re.compile(rf"[0-9a-f]{{{_ID_BYTES}}}")


class SyncerDirectory:
    """The directory of one job's syncer, locked against a second one while it is open."""

    def __init__(self, root: Path, patience_seconds: float = 0.0, waiting: Callable[[], object] = lambda: None) -> None:
        """Create the directory if need be, and lock it.

        After its pod was deleted, a syncer writes its last checkpoint while the next one starts, so the lock is waited
        for, at most ``patience_seconds``. ``waiting`` is called at each attempt that finds it taken.

        Raises:
            UnusableFileError: it cannot be written to.
            SyncerError: another syncer has used it for ``patience_seconds``, or it cannot be locked.
        """
        make_writable_directory(root, even_if_full=True)
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.tape = root / "tape"
        self.payloads = root / "payloads"
        self.endpoint = root / "endpoint.json"
        self.dealt = root / "dealt.json"
        """Which sequences learners may have been dealt."""
        self.model = root / "model.safetensors"
        self.curves = root / curves.FILE
        self.status = root / syncer.FILE
        self.journal = root / JOURNAL
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take_lock(patience_seconds, waiting)
        except BaseException:
            os.close(self._lock)
            raise

    def training(self, given: str = "") -> str:
        """Id of the training in this directory, 16 hexadecimal digits; made at the first call.

        ``given`` is the id of a training that a backup has brought here.

        Raises:
            OSError: it could not be written.
        """
        path = self.root / "training"
        found = _id_in(path)
        if found and not given:
            return found
        if given:
            # First: with the training's id alone, this directory would delete backups of the one that it came from.
            write_atomically(self.root / "writer", f"{secrets.token_hex(8)}\n")
        made = given or secrets.token_hex(8)
        if made != found:
            write_atomically(path, f"{made}\n")
        return made

    def writer(self) -> str:
        """Id of this directory in its backups, 16 hexadecimal digits: two that go on with one training have two.

        The directory in which the training began has the training's id. One into which a backup was restored has
        another id.

        Raises:
            OSError: the id of the training could not be written.
        """
        return _id_in(self.root / "writer") or self.training()

    def known_training(self) -> str:
        """Id of the training; empty if there is none yet and none can be written."""
        try:
            return self.training()
        except OSError as error:
            told = (
                "%s: has no id of the training (%s): learners cannot tell whether their checkpoints are of another one"
            )
            _log.warning(told, self.root, error.strerror or error)
            return ""

    def begin_epoch(self, known: int = 0) -> int:
        """A new epoch, one more than any before; on disk before it is used. ``known``: that of the checkpoint.

        If the file is lost, the tapes give the last epoch. A directory that was restored from an older copy repeats
        numbers all the same: what learners compare has a random part too (`epoch_on_wire`).

        Raises:
            OSError: it could not be written.
        """
        path = self.root / "epoch"
        try:
            with open_regular(path) as file:
                last = int(file.read())
        except (OSError, ValueError):
            last = 0
        epoch = max([last, known, *(tape.epoch for tape in find_tapes(self.tape))]) + 1
        try:
            write_atomically(path, f"{epoch}\n")
        except OSError:
            if not last:
                raise
            # No room for a new file. The old one already has its block, so a few bytes can be overwritten in place.
            overwrite(path, f"{epoch}\n".encode())
        return epoch

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _take_lock(self, patience_seconds: float, waiting: Callable[[], object]) -> None:
        until, told = time.monotonic() + patience_seconds, False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
            except OSError as error:
                raise _no_lock(self.root, error) from error
            else:
                return
            left = until - time.monotonic()
            if left <= 0:
                # Not a mistake in the manifest: a restart helps once the other syncer has ended.
                text = f"{self.root}: another syncer is using this directory; stop it or wait for its end"
                raise SyncerError(text, EXIT_UNEXPECTED)
            if not told:
                _log.warning("%s: another syncer is using this directory; waiting for it to end", self.root)
                told = True
            time.sleep(min(left, _RETRY_SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def epoch_on_wire(epoch: int) -> str:
    """What learners know this start of the syncer by: no other start has the same, whatever its directory remembers.

    Versions and incarnations are comparable within one such name only. Learners compare it as text.
    """
    return f"{epoch}.{secrets.token_hex(8)}"


def _id_in(path: Path) -> str:
    """The id in a file; empty if there is none."""
    try:
        with open_regular(path) as file:
            found = file.read(_ID_BYTES + 2).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return found if _ID.fullmatch(found) else ""


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file that is not longer, in place, and to the disk: for one that has no room for a new file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)  # never shorter than the old content: the number grows
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_lock(root: Path, error: OSError) -> SyncerError:
    why = error.strerror or error
    if error.errno in _NO_LOCKS:
        text = f"{root}: its file system has no file locks ({why}); use a volume whose file system has them"
        return SyncerError(text, EXIT_BAD_INPUT)
    return SyncerError(f"{root}: cannot be locked ({why})", EXIT_UNEXPECTED)
