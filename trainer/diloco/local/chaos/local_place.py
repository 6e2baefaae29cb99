"""A run on this machine as a place for ``diloco chaos``: orders go through the run's own supervisor.

The supervisor is the only one that signals its processes, so nothing else on the machine can be hit, its journal has
every fault, and it knows that the victims did not fail by themselves.
"""

import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Final

from diloco.local.chaos.order_file import HEAL, LONGEST_SECONDS, Command, OrderWriter
from diloco.local.chaos.orders import Order
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco.local.directory import LOCK, RunDirectory
from diloco.local.journal import Entry, read_journal
from diloco.local.status_poll import StatusError, fetch_status
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec import load_job
from diloco.spec.syncer_status import SyncerStatus

_ANSWER_SECONDS: Final = 10.0
"""Longest wait until the supervisor has carried out an order."""
_LOOK_SECONDS: Final = 0.1


class LocalPlace:
    """The run in a directory. ``begin`` before the first order, ``close`` after the last."""

    def __init__(self, root: Path) -> None:
        """Open the run.

        Raises:
            ChaosError: no run is going on there, or it belongs to somebody else.
            SpecError: its manifest cannot be read.
        """
        directory = RunDirectory(root)
        self._lock = _identity(root / LOCK)
        if not directory.job.is_file():
            raise ChaosError(f"{root}: has no run; use the output directory of a diloco run that is going on")
        if not _is_locked(root / LOCK):
            raise ChaosError(f"{root}: no run is going on there; start it with diloco run, then start chaos")
        owner = directory.journal.stat().st_uid if directory.journal.exists() else os.geteuid()
        if owner != os.geteuid():
            raise ChaosError(f"{root}: the run belongs to another user; only its owner can inject faults")
        self._directory = directory
        job = load_job(directory.job)
        self.job = job.metadata.name
        self.learner_ids = job.spec.learner_ids
        started = [entry for entry in read_journal(directory.journal) if entry.event == "run"]
        relayed = started[-1].details.get("relayed") if started else None
        if relayed is None:
            raise ChaosError(f"{root}: the run was started by an earlier version, which takes no orders")
        self.relayed = tuple(map(str, relayed))
        self._orders: OrderWriter | None = None
        self._session = secrets.token_hex(8)
        self._count = 0
        self._failed: ChaosError | None = None
        """Why no order can be given any more."""

    def begin(self) -> None:
        """Begin to give orders.

        Raises:
            ChaosError: another session is at work on the run, or it cannot be written to.
        """
        self._orders = OrderWriter(self._directory.orders)

    def check(self, orders: tuple[Order, ...]) -> None:
        """Check that the run can carry out the orders.

        Raises:
            ChaosError: one cuts a link without a relay, or lasts too long.
        """
        for order in orders:
            if order.kind is FaultKind.CUT and (without := sorted(set(order.victims) - set(self.relayed))):
                raise ChaosError(f"cut {without[0]}: its link cannot be cut; start the run with diloco run --relays")
            if order.seconds > LONGEST_SECONDS:
                raise ChaosError(
                    f"{order.kind} {order.target}: {order.seconds:g} s is too long; use at most {LONGEST_SECONDS:g} s"
                )

    def hit(self, order: Order) -> tuple[tuple[str, ...], str]:
        """See ``session.Place``."""
        self._count += 1
        name = f"{self._session}-{self._count}"
        journal = self._directory.journal
        start = journal.stat().st_size if journal.exists() else 0
        try:
            self._write(Command(name, time.time(), order.kind.value, order.victims, order.seconds, order.manner))
        except ChaosError as error:
            self._failed = error
            return (), str(error)
        deadline = time.monotonic() + _ANSWER_SECONDS
        found: list[Entry] = []
        while len(found) < len(order.victims) and time.monotonic() < deadline and not self.over():
            time.sleep(_LOOK_SECONDS)
            found = [entry for entry in read_journal(journal, start) if entry.details.get("order") == name]
        refused = [entry for entry in found if entry.event == "refused"]
        hit = tuple(entry.process for entry in found if entry.event != "refused")
        if not found:
            return (), "the supervisor did not answer"
        return hit, "; ".join(sorted({f"{one.process}: {one.details.get('reason', '')}" for one in refused})[:3])

    def status(self) -> SyncerStatus | None:
        """See ``session.Place``."""
        try:
            address = str(read_json(self._directory.syncer / "endpoint.json")["http"])
            return fetch_status(address, timeout_seconds=2.0)
        except (StatusError, UnusableFileError, KeyError, TypeError, ValueError):
            return None

    def over(self) -> bool:
        """See ``session.Place``.

        Raises:
            ChaosError: an order could not be given, or the directory is not that of this run any more.
        """
        if self._failed is not None:
            raise self._failed
        root = self._directory.root
        # A run leaves the file where it is: one that is gone or new means another directory, maybe with another run.
        if _identity(root / LOCK) != self._lock:
            raise ChaosError(f"{root}: the directory of the run was removed or replaced")
        return not _is_locked(root / LOCK)

    def heal(self) -> None:
        """See ``session.Place``."""
        self._write(Command(f"{self._session}-heal", time.time(), HEAL))

    def close(self) -> None:
        """Let another session begin."""
        if self._orders is not None:
            self._orders.close()

    def _write(self, command: Command) -> None:
        if self._orders is not None:
            self._orders.write(command)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at ``path``; None: none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_locked(path: Path) -> bool:
    """Whether a run holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, and only for a moment: two sessions that look at once do not take each other for a run.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
