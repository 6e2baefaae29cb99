"""Writes files completely or not at all, whatever happens to the process or its machine meanwhile, and reads them.

System errors are raised as ``OSError``: the caller decides whether to go on without the file (a checkpoint on a full
disk) or to stop (an output directory that cannot be written).
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from diloco.runtime.json_text import JsonError, parse_json

_READ_BYTES = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Errors of ``link`` on a file system that has no hard links, or no more of one file."""


class UnusableFileError(ValueError):
    """A file is missing, unreadable or not what it should be; the text names it."""


_MACHINE_ERRORS = frozenset(
    {
        *(errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT),
    }
)


def is_machine_error(error: OSError) -> bool:
    """Whether the error comes from a shortage or fault of the machine, which may pass, and not from a wrong request."""
    return error.errno in _MACHINE_ERRORS


FileSignature = tuple[int, int, int, int]
"""Of one file; changes when its content, or a link in its path, does."""


def signature_of(path: Path) -> FileSignature | None:
    """A signature from one ``stat`` that shows whether to read a file again, also in a mounted ConfigMap or Secret.

    None: it does not exist, which may be so for a moment while it is replaced.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def fsync(*paths: Path) -> None:
    """Make files durable that other code has written, or names in directories: a rename needs that."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def written_atomically(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which is at ``path`` once complete: a reader sees the old content or the new, never a part.

    ``durable`` also waits until it is on disk.

    Raises:
        OSError: it could not be written; a file that was at ``path`` before is unchanged.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            if durable:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if durable:
        fsync(path.parent)


def write_atomically(path: Path, data: bytes | memoryview | str, *, durable: bool = True) -> None:
    """Write ``data``, text as UTF-8, as ``written_atomically`` does."""
    with written_atomically(path, durable=durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_json_atomically(path: Path, value: object) -> None:
    """``write_atomically`` of ``value`` as indented JSON."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def share_file(source: Path, target: Path) -> bool:
    """Give a file that is never written to again a second name; a copy where the file system has no hard links.

    Raises:
        OSError: it is not there, or could not be copied.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        fsync(target)
        return False
    return True


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; refuses others, such as a pipe, which could block forever.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is not a regular file; use one", str(path))


def read_json(path: Path, *, limit_bytes: int = 64 << 20) -> Any:
    """The JSON value in a file of at most ``limit_bytes``.

    Raises:
        UnusableFileError: it is missing, unreadable, too large, not a regular file, not JSON or nested too deeply.
    """
    try:
        with open_regular(path) as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror or error}") from error
    if len(content) > limit_bytes:
        raise UnusableFileError(f"{path}: larger than {limit_bytes} bytes")
    try:
        return parse_json(content)
    except JsonError as error:
        raise UnusableFileError(f"{path}: {error}") from error


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of ``data``, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal.

    Raises:
        OSError: it could not be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def make_writable_directory(path: Path, *, even_if_full: bool = False) -> None:
    """Make ``path`` a directory that this process can write to, with its parents.

    ``even_if_full``: accept one on a full disk, for work that goes on without what it cannot write.

    Raises:
        UnusableFileError: it is not a directory or cannot be written to; tested by writing, so that a read-only file
            system is detected too.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0")
    except FileExistsError as error:
        raise UnusableFileError(f"{path}: is a file; use a directory, or remove the file") from error
    except OSError as error:
        if even_if_full and error.errno in (errno.ENOSPC, errno.EDQUOT) and path.is_dir():
            return
        raise UnusableFileError(f"{path}: cannot be written to ({error.strerror or error})") from error
