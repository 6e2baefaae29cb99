"""Watches the file that names given-up learners which may join again (`diloco.spec.readmission`)."""

import logging
from pathlib import Path

from diloco.core.events import LearnerReadmitted
from diloco.runtime.files import FileSignature, open_regular, signature_of
from diloco.spec.readmission import MAXIMUM_BYTES, READMITTED_FILE, readmissions

_log = logging.getLogger(__name__)


class ReadmittedFile:
    """The file beside one manifest, polled for changes. For one thread at a time."""

    def __init__(self, manifest: Path, epoch: int) -> None:
        """``epoch``: this start of the syncer; orders to others have no effect."""
        self._path = manifest.parent / READMITTED_FILE
        self._epoch = epoch
        self._signature: FileSignature | None = None

    def poll(self) -> tuple[LearnerReadmitted, ...]:
        """The learners it names, if it has changed. Never raises: problems are logged.

        An order that was carried out before has no effect, so it does no harm that a changed file repeats it.
        """
        signature = signature_of(self._path)
        if signature is None or signature == self._signature:
            return ()
        self._signature = signature
        try:
            with open_regular(self._path) as file:
                data = file.read(MAXIMUM_BYTES + 1)
        except OSError as error:
            _log.warning("%s: %s; no learner is let back in", self._path, error.strerror or error)
            return ()
        if len(data) > MAXIMUM_BYTES:
            _log.warning("%s: is larger than %d bytes; no learner is let back in", self._path, MAXIMUM_BYTES)
            return ()
        found = readmissions(data.decode("utf-8", "replace"))
        return tuple(LearnerReadmitted(one.learner, one.incarnation) for one in found if one.epoch == self._epoch)
