"""A folder of a bucket or of a file system, reached through fsspec. Every error is one line that names the folder.

Buckets (s3://, gs://) need obstore, which is one package for all providers and is imported only for them.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import fsspec  # type: ignore[import-untyped]

from diloco.runtime.files import fsync, open_regular, write_atomically

_BLOCK_BYTES: Final = 8 << 20
_REQUEST_SECONDS: Final = 300
"""Longest time for one request, which carries one block at most: about 0.3 Mbit/s."""
_RETRY_SECONDS: Final = 60
_LONGEST_ERROR: Final = 300


class StoreError(RuntimeError):
    """The store could not be read or written; one line."""


class WrongFileError(StoreError):
    """The store answers, but the file is missing, or larger than what is read of it."""


class StoppedError(RuntimeError):
    """The transfer was told to stop."""


class ObjectStore:
    """One folder. Names are relative to it; blocking, so for a thread of its own."""

    def __init__(self, url: str, file_system: Any, root: str) -> None:
        """``root`` is the folder on ``file_system`` (fsspec); ``url`` is what messages call it."""
        self.url = url
        self._files = file_system
        self._root = root.rstrip("/")
        protocol = file_system.protocol
        self.is_folder = "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders directly in the folder, sorted; none if it does not exist.

        Raises:
            StoreError: it cannot be listed.
        """
        try:
            self._files.invalidate_cache()
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._error("cannot be listed", error) from error
        return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found} - {""})

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The content of a small file.

        Raises:
            WrongFileError: it is missing, or larger than ``limit_bytes``.
            StoreError: it cannot be read.
        """
        try:
            with self._files.open(self._path(name), "rb") as file:
                content = bytes(file.read(limit_bytes + 1))
        except Exception as error:
            raise self._error(f"{name} cannot be read", error) from error
        if len(content) > limit_bytes:
            raise WrongFileError(f"{self.url}: {name} is larger than {limit_bytes} bytes")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, completely or not at all.

        Raises:
            StoreError: it could not be written.
        """
        try:
            if self.is_folder:
                path = Path(self._path(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content)
            else:
                self._files.pipe_file(self._path(name), content)
        except Exception as error:
            raise self._error(f"{name} cannot be written", error) from error

    def upload(self, path: Path, name: str, go_on: Callable[[int], bool]) -> str:
        """Copy a local file to ``name``; its SHA-256, hexadecimal. ``go_on`` is called with each block's size.

        What arrives is no backup until a manifest names it, so a part that an error leaves does no harm.

        Raises:
            OSError: the local file cannot be read.
            StoreError: the store took less than all of it.
            StoppedError: ``go_on`` returned false.
        """
        digest, size, target = hashlib.sha256(), 0, self._path(name)
        with open_regular(path) as source:
            try:
                if self.is_folder:
                    Path(target).parent.mkdir(parents=True, exist_ok=True)
                with self._files.open(target, "wb", block_size=_BLOCK_BYTES) as file:
                    while block := source.read(_BLOCK_BYTES):
                        file.write(block)
                        digest.update(block)
                        size += len(block)
                        if not go_on(len(block)):
                            raise StoppedError  # noqa: TRY301  # passed on below
                if self.is_folder:
                    fsync(Path(target), Path(target).parent)
            except StoppedError:
                raise
            except Exception as error:
                raise self._error(f"{name} cannot be written", error) from error
        stored = self.size(name)
        if stored != size:
            raise StoreError(f"{self.url}: {name} has {stored} bytes there, not the {size} that were sent")
        return digest.hexdigest()

    def copy(self, source: str, target: str) -> None:
        """Make a file that is in the folder already its content at another name too; the store itself copies it.

        Raises:
            StoreError: it could not be copied.
        """
        try:
            self._files.cp_file(self._path(source), self._path(target))
        except Exception as error:
            raise self._error(f"{source} cannot be copied", error) from error

    def download(self, name: str, path: Path, size_bytes: int) -> str:
        """Copy a file of at most ``size_bytes`` to ``path``; its SHA-256, hexadecimal.

        Raises:
            OSError: the local file cannot be written.
            WrongFileError: it is missing or larger.
            StoreError: it cannot be read.
        """
        digest, left = hashlib.sha256(), size_bytes
        with path.open("wb") as target:
            for block in self._blocks(name):
                left -= len(block)
                if left < 0:
                    raise WrongFileError(f"{self.url}: {name} is larger than {size_bytes} bytes")
                target.write(block)
                digest.update(block)
            target.flush()
            os.fsync(target.fileno())
        return digest.hexdigest()

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing happens if it is gone.

        Raises:
            StoreError: it could not be deleted.
        """
        try:
            self._files.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._error(f"{name} cannot be deleted", error) from error

    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            WrongFileError: it is missing.
            StoreError: the store does not answer.
        """
        return self.size_and_version(name)[0]

    def size_and_version(self, name: str) -> tuple[int, str]:
        """Bytes of a file, and a text that changes with it.

        The text is the size, and the tag that a bucket gives the file or, elsewhere, when it was written.

        Raises:
            WrongFileError: it is missing.
            StoreError: the store does not answer.
        """
        try:
            self._files.invalidate_cache()
            found = self._files.info(self._path(name))
        except Exception as error:
            raise self._error(f"{name} cannot be found", error) from error
        return int(found["size"]), f"{found['size']} {found.get('e_tag') or found.get('mtime')}"

    def _blocks(self, name: str) -> Iterator[bytes]:
        try:
            with self._files.open(self._path(name), "rb", block_size=_BLOCK_BYTES) as source:
                while block := bytes(source.read(_BLOCK_BYTES)):
                    yield block
        except Exception as error:
            raise self._error(f"{name} cannot be read", error) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _error(self, what: str, error: Exception) -> StoreError:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        kind = WrongFileError if isinstance(error, FileNotFoundError) else StoreError
        return kind(f"{self.url}: {what} ({_one_line(told)})")


def open_store(url: str, endpoint: str | None = None) -> ObjectStore:
    """The folder at ``url``, as in ``syncer.backup.url``. Nothing is requested yet.

    Credentials and region come from the environment, as the provider's own tools read them.

    Raises:
        StoreError: the package for this kind of store is not installed, or refuses its settings.
    """
    protocol, separator, rest = url.partition("://")
    if not separator or protocol == "file":
        root = Path(rest if separator else url).absolute()
        return ObjectStore(url, fsspec.filesystem("file", skip_instance_cache=True), str(root))
    try:
        from obstore.fsspec import FsspecStore  # noqa: PLC0415
    except ImportError:
        raise StoreError(f"{url}: needs the package obstore, which is not installed; install it") from None
    if endpoint is None and protocol == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
    settings: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    client: dict[str, Any] = {"timeout": f"{_REQUEST_SECONDS}s", "connect_timeout": "20s"}
    if endpoint is not None and endpoint.startswith("http://"):
        client["allow_http"] = True
    try:
        retries = {"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        make: Any = FsspecStore  # its type has a variant for each protocol
        files = make(protocol, config=settings, client_options=client, retry_config=retries)
    except Exception as error:
        raise StoreError(f"{url}: cannot be used ({_one_line(str(error))})") from error
    return ObjectStore(url, files, rest)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 3]}..."
