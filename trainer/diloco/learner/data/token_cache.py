"""Keeps the tokens of documents as a token file, so that they are tokenized once on a machine, by one process.

The file's name is a digest of what it is made from. A process that is killed leaves no token file and no lock.
"""

import fcntl
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from diloco.learner.data.documents import DocumentFiles, find_document_files
from diloco.learner.data.source import DataStoppedError, unreadable
from diloco.learner.data.token_file_maker import Progress, at_most_every, make_from_files
from diloco.learner.data.tokenfile import TokenFile, open_token_file
from diloco.learner.data.tokenizer import Tokenizer, tokenizer_of
from diloco.runtime.cache import VARIABLE
from diloco.spec.training import DocumentsData

_log = logging.getLogger(__name__)

_TELL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.5
_MADE_BY: Final = 2
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
    path = folder / f"{_key(files, tokenizer)}.tokens"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("w") as lock:
                _lock(lock, stopping)
                if not path.exists():
                    _make(files, path, tokenizer, stopping)
    except OSError as error:
        what = f"{field}: {path} cannot be written; free space, or name another folder in {VARIABLE}"
        raise unreadable(what, error) from error
    return open_token_file(path)


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


def _key(files: DocumentFiles, tokenizer: Tokenizer) -> str:
    read = [
        (str(file.path), file.size_bytes, signature and signature[2:])
        for file, signature in zip(files.files, files.signatures, strict=True)
    ]
    place = files.store and files.store.url
    made_from = [_MADE_BY, place, read, files.column, tokenizer.name, tokenizer.end_of_document]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:32]
