"""Keeps the tokens of documents as a token file, so that they are tokenized once on a machine, by one process.

The file's name has a digest of where its documents are, and one of all it is made from. So a new one shows which are of
no more use: these are removed, except those that a process reads. A process that is killed leaves no token file and no
lock.
"""

import fcntl
import json
import logging
import shutil
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from diloco.learner.data.documents import DocumentFiles, find_document_files
from diloco.learner.data.source import DataError, DataStoppedError, unreadable
from diloco.learner.data.token_file_maker import Progress, at_most_every, make_from_files
from diloco.learner.data.tokenfile import TokenFile, open_token_file
from diloco.learner.data.tokenizer import Tokenizer, tokenizer_of
from diloco.runtime.cache import VARIABLE
from diloco.runtime.files import sha256_bytes
from diloco.spec.training import DocumentsData

_log = logging.getLogger(__name__)

_TELL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.5
_MADE_BY: Final = 3
"""Raised when the same documents become other tokens."""


def cached_tokens(
    documents: DocumentsData, folder: Path, field: str, stopping: Callable[[], bool] = lambda: False
) -> TokenFile:
    """The documents' tokens, from a file in ``folder``, which this process or another makes if it is not there.

    Raises:
        DataStoppedError: ``stopping`` became true before it was there.
        DataError: documents, tokenizer or folder cannot be used; one line that names ``field``.
    """
    files = find_document_files(documents, field, folder)
    tokenizer = tokenizer_of(documents, field)
    place = _place(documents)
    path = folder / f"{place}-{_key(files, tokenizer)}.tokens"
    if path.exists():
        try:
            return _opened(path)
        except DataError:
            if path.exists():  # no process with other documents has removed it meanwhile
                raise
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            _lock(lock, stopping)
            if not path.exists():
                for old in folder.glob(f"{place}-*.tokens"):
                    _remove_unless_read(old)
                _make(files, path, tokenizer, stopping)
            return _opened(path)
    except OSError as error:
        what = f"{field}: {path} cannot be written; free space, or name another folder in {VARIABLE}"
        raise unreadable(what, error) from error


def _opened(path: Path) -> TokenFile:
    """Its file is locked while it is open."""
    tokens = open_token_file(path)
    with suppress(OSError):  # without locks nothing is removed
        held = path.open("rb")
        weakref.finalize(tokens, held.close)
        fcntl.flock(held, fcntl.LOCK_SH)
    return tokens


def _remove_unless_read(path: Path) -> None:
    with suppress(OSError), path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
        _log.info("removed %s: its documents, or their tokenizer, have changed", path)


def _lock(file: IO[str], stopping: Callable[[], bool]) -> None:
    """Lock until it is closed, or this process ends; wait for another process that has it."""
    told = False
    while not _has_locked(file):
        if not told:
            _log.info("waiting for another process that is tokenizing documents")
            told = True
        _check(stopping)
        time.sleep(_LOOK_SECONDS)


def _has_locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check(stopping: Callable[[], bool]) -> None:
    if stopping():
        raise DataStoppedError("stopped before the documents were tokenized")


def _make(files: DocumentFiles, path: Path, tokenizer: Tokenizer, stopping: Callable[[], bool]) -> None:
    for left in path.parent.glob(".*.part"):  # by a process that was killed, as only one has the lock
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    _log.info("tokenizing %d file(s) with %s into %s", len(files.files), tokenizer.name, path)
    log = at_most_every(_TELL_SECONDS, lambda now: _log.info("%s", now))

    def tell(now: Progress) -> None:
        _check(stopping)
        log(now)

    info = make_from_files(files, path, tokenizer, tell)
    _log.info("made %s: %d tokens", path, info.count)


def _place(documents: DocumentsData) -> str:
    """What names documents and tokenizer, whatever is there now."""
    path = documents.path if "://" in documents.path else str(Path(documents.path).absolute())
    tokenizer = documents.tokenizer and str(Path(documents.tokenizer).absolute())
    return _digest([path, documents.column, tokenizer])[:16]


def _key(files: DocumentFiles, tokenizer: Tokenizer) -> str:
    read = [
        (str(file.path), file.size_bytes, signature if isinstance(signature, str) else signature and signature[2:])
        for file, signature in zip(files.files, files.signatures, strict=True)
    ]
    place = files.store and files.store.url
    return _digest([_MADE_BY, place, read, files.column, tokenizer.name, tokenizer.end_of_document])[:32]


def _digest(value: object) -> str:
    return sha256_bytes(json.dumps(value).encode())
