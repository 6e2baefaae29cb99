"""When what is uploaded: one backup at a time, in a thread beside training, repeated until it succeeds.

Owned by the event loop, which calls ``tick`` about once a second. A failure never stops training; it is in the status,
and from there in the metrics, the views and the job's conditions.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from diloco.core.fragments import Layout
from diloco.runtime.files import UnusableFileError
from diloco.runtime.object_store import ObjectStore, StoppedError, StoreError, open_store
from diloco.spec import DiLoCoJob
from diloco.spec.backup import Backup
from diloco.spec.status.syncer import BackupStatus
from diloco.syncer.backup.manifest import MODEL, BackupError, BackupManifest
from diloco.syncer.backup.ownership import BackupOwner, JobName, NotOursError
from diloco.syncer.backup.upload import BackupSource, Uploader
from diloco.syncer.disk.checkpoint import read_checkpoint_manifest
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError

_log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 5.0
_LONGEST_RETRY_SECONDS: Final = 300.0
STUCK_SECONDS: Final = 330.0
"""Time without a byte moved after which an upload is reported as stuck: more than one request may take."""
LAST_SECONDS: Final = 600.0
"""Longest that the end of a job waits for an upload that moves no bytes (ours)."""
LAST_ATTEMPTS: Final = 8
"""Attempts in a row that may fail at the end of a job: with the waits between them 10 minutes at least (ours)."""


@dataclass
class _Upload:
    """An upload in its thread. Its fields are set there and read on the event loop."""

    what: str
    thread: threading.Thread | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    moved_bytes: int = 0
    moved_at: float = 0.0
    made: BackupManifest | None = None
    failure: Exception | None = None


class Backups:
    """The backups of one syncer process."""

    def __init__(  # noqa: PLR0913  # what a backup is made of
        self,
        spec: Backup,
        owner: BackupOwner,
        checkpoints: Path,
        model: Path,
        checkpointer: Checkpointer,
        *,
        open_folder: Callable[[str, str | None], ObjectStore] = open_store,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._uploader = Uploader(owner)
        self._checkpoints = checkpoints
        self._model = model
        self._checkpointer = checkpointer
        self._open_folder = open_folder
        self._clock = clock
        # At once, so that a wrong url or missing rights show at once.
        self._due_at = clock()
        self._upload: _Upload | None = None
        self._uploaded: set[str] = set()
        self._newest = ""
        self._newest_step = 0
        self._newest_at: float | None = None
        self._bytes = 0
        self._failures = 0
        self._in_a_row = 0
        self._problem = ""
        self._ended = False
        self._given_up = False
        self._closed = False

    @property
    def status(self) -> BackupStatus:
        """For ``/status``."""
        age = None if self._newest_at is None else self._clock() - self._newest_at
        moved = self._bytes + (self._upload.moved_bytes if self._upload is not None else 0)
        return BackupStatus(
            newest=self._newest,
            step=self._newest_step,
            age_seconds=age,
            uploaded_bytes=moved,
            uploading=self._upload is not None,
            failures=self._failures,
            problem=self._problem or self._stuck(),
        )

    @property
    def settled(self) -> bool:
        """Whether the end of the job need not wait: all is uploaded, or that is given up."""
        return self._ended and (self._given_up or not self._wanted_last())

    def ended(self) -> None:
        """Note that the last checkpoint and the finished model are on disk: both are uploaded without delay."""
        if not self._ended:
            self._ended, self._due_at, self._in_a_row = True, self._clock(), 0
            if self._upload is not None:  # its time counts from here on
                self._upload.moved_at = self._due_at

    def tick(self) -> None:
        """Take the result of an upload that has ended, and begin one that is due."""
        now = self._clock()
        if self._upload is not None and self._upload.thread is not None and not self._upload.thread.is_alive():
            self._take(self._upload, now)
        still = self._upload is not None and now - self._upload.moved_at >= LAST_SECONDS
        if self._ended and not self.settled and (still or self._in_a_row >= LAST_ATTEMPTS):
            self._given_up = True
            _log.error("the finished model is not in %s; no longer waiting", self._spec.url)
        # While one is being written, older ones may be deleted.
        if self._closed or self._upload is not None or now < self._due_at or self._checkpointer.busy:
            return
        what = self._next()
        if what:
            self._begin(what, now)

    def close(self) -> None:
        """Stop an upload after its current block. The thread is not waited for: its store may not answer."""
        self._closed = True
        if self._upload is not None:
            self._upload.stopped.set()

    def _wanted_last(self) -> list[str]:
        """What the end of a job uploads and has not uploaded yet."""
        return [what for what in (self._checkpointer.newest, MODEL) if what not in self._uploaded]

    def _next(self) -> str:
        if self._ended:
            return next(iter(self._wanted_last()), "")
        newest = self._checkpointer.newest
        return "" if newest in self._uploaded else newest

    def _begin(self, what: str, now: float) -> None:
        upload = _Upload(what, moved_at=now)
        self._checkpointer.hold(what if what != MODEL else "")
        # A daemon: a store that does not answer must not keep the process from ending.
        upload.thread = threading.Thread(target=self._run, args=(upload,), name="backup", daemon=True)
        self._upload = upload
        upload.thread.start()

    def _run(self, upload: _Upload) -> None:
        def go_on(moved: int) -> bool:
            upload.moved_bytes += moved
            upload.moved_at = self._clock()
            return not upload.stopped.is_set()

        try:
            store = self._open_folder(self._spec.url, self._spec.endpoint)
            source = self._source(upload.what)
            upload.made = self._uploader.upload(store, source, self._spec.max_backups, go_on)
        except Exception as error:  # noqa: BLE001  # taken on the event loop
            upload.failure = error

    def _source(self, what: str) -> BackupSource:
        manifest = read_checkpoint_manifest(self._checkpoints / (self._checkpointer.newest if what == MODEL else what))
        step = sum(manifest.versions)
        if what == MODEL:
            return BackupSource(what, (self._model,), {}, step)
        folder = self._checkpoints / what
        files = tuple(folder / name for name in ("manifest.json", *manifest.files))
        digests = {name: file.sha256 for name, file in manifest.files.items()}
        return BackupSource(what, files, digests, step)

    def _take(self, upload: _Upload, now: float) -> None:
        self._upload = None
        self._bytes += upload.moved_bytes
        self._checkpointer.hold("")
        if upload.made is not None:
            self._in_a_row, self._problem = 0, ""
            self._uploaded.add(upload.what)
            self._newest, self._newest_step, self._newest_at = upload.made.name, upload.made.step, now
            self._due_at = now if self._ended else now + self._spec.every_seconds
            _log.info("backup %s is complete: %d bytes", upload.made.name, upload.made.size_bytes)
            return
        error = upload.failure
        if isinstance(error, StoppedError):
            return
        self._failures += 1
        wait = min(_FIRST_RETRY_SECONDS * 2.0 ** min(self._in_a_row, 10), _LONGEST_RETRY_SECONDS)
        self._in_a_row += 1
        self._due_at = now + wait
        self._problem = _told(error)
        expected = (StoreError, NotOursError, BackupError, UnusableFileError, SyncerError, OSError)
        _log.error(
            "cannot upload a backup: %s; training continues, and the next attempt is in %.0f s",
            self._problem,
            wait,
            exc_info=None if isinstance(error, expected) else error,
        )

    def _stuck(self) -> str:
        if self._upload is None or self._clock() - self._upload.moved_at < STUCK_SECONDS:
            return ""
        return f"{self._spec.url}: the upload has moved no byte for more than {STUCK_SECONDS:.0f} s"


def backups_of(
    job: DiLoCoJob, directory: SyncerDirectory, layout: Layout, checkpointer: Checkpointer, clock: Callable[[], float]
) -> Backups | None:
    """The backups that the job asks for; None: none.

    Raises:
        OSError: the id of the training could not be written.
    """
    spec = job.spec.syncer.backup
    if spec is None:
        return None
    owner = BackupOwner(JobName.of(job.metadata), directory.training(), layout, directory.writer())
    return Backups(spec, owner, directory.checkpoints, directory.model, checkpointer, clock=clock)


def _told(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
