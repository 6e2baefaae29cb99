"""Watches a file with orders about single learners (`diloco.spec.names.learner_orders`)."""

import logging
from collections.abc import Callable
from pathlib import Path

from diloco.core.engine.events import Event
from diloco.runtime.files import FileSignature, open_regular, signature_of
from diloco.spec.names.learner_orders import MAXIMUM_BYTES, orders_in

_log = logging.getLogger(__name__)


class OrderFile:
    """One file, polled for changes. For one thread at a time."""

    def __init__(self, path: Path, epoch: int, event: Callable[[str, int], Event]) -> None:
        """Nothing is read yet. Orders to another start of the syncer than ``epoch`` have no effect.

        ``event`` makes the engine's event of a learner and the incarnation that is meant.
        """
        self._path = path
        self._epoch = epoch
        self._event = event
        self._signature: FileSignature | None = None

    def poll(self) -> tuple[Event, ...]:
        """An event for each learner it names, if it has changed. Never raises: problems are logged.

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
            _log.warning("%s: %s; its orders are not carried out", self._path, error.strerror or error)
            return ()
        if len(data) > MAXIMUM_BYTES:
            _log.warning("%s: is larger than %d bytes; its orders are not carried out", self._path, MAXIMUM_BYTES)
            return ()
        found = orders_in(data.decode("utf-8", "replace"))
        return tuple(self._event(one.learner, one.incarnation) for one in found if one.epoch == self._epoch)
