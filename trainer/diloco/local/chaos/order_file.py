"""How ``diloco chaos`` tells a running ``diloco run`` what to do: lines of JSON appended to ``chaos.orders``.

Only the user who owns the run can give orders: the supervisor ignores the file if anybody else owns it or may write to
it. It reads only what is appended after its start, a bounded amount at a time, and ignores orders that are old, so that
a resumed run does not repeat them. Every order names its effect and its end: if ``diloco chaos`` dies, pauses and cuts
end by themselves.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from diloco.local.chaos.spec import ChaosError, FaultKind, Manner
from diloco.runtime.files import open_regular
from diloco.runtime.json_text import JsonError, parse_json

HEAL: Final = "heal"
"""The order that ends every ordered pause and cut."""
LONGEST_SECONDS: Final = 3600.0
"""Longest pause or cut that can be ordered (ours)."""
_LINE_BYTES: Final = 1 << 20
_FILE_BYTES: Final = 64 << 20
_FRESH_SECONDS: Final = 30.0
_MOST_VICTIMS: Final = 10_000
_ID_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class Command:
    """One order as it is written."""

    id: str
    """Unique; the journal's entries about it have it as ``order``."""
    made_at: float
    """Unix time."""
    kind: str
    """``kill``, ``pause``, ``cut``, or ``heal``."""
    victims: tuple[str, ...] = ()
    seconds: float = 0.0
    manner: Manner = Manner.SILENT


class OrderWriter:
    """Appends orders; one at a time for a run."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, and lock it until ``close``.

        Raises:
            ChaosError: another ``diloco chaos`` is at work on this run, or the file cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise ChaosError(f"{path}: cannot be written ({error.strerror or error})") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise ChaosError(f"{path}: another diloco chaos is at work on this run; wait for it") from error
        self._path = path

    def write(self, command: Command) -> None:
        """Append an order.

        Raises:
            ChaosError: it cannot be written.
        """
        line = {
            "id": command.id,
            "made_at": command.made_at,
            "kind": command.kind,
            "victims": list(command.victims),
            "seconds": command.seconds,
            "manner": command.manner,
        }
        try:
            # One write, and one line: the reader takes whole lines only.
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise ChaosError(f"{self._path}: cannot be written ({error.strerror or error})") from error

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


class OrderReader:
    """The supervisor's end: the orders that came since the last look."""

    def __init__(
        self, path: Path, complain: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.time
    ) -> None:
        """Read what is appended to ``path`` from now on; ``complain`` is called about what is ignored."""
        self._path = path
        self._complain = complain
        self._clock = clock
        self._complained: set[str] = set()
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0

    def new(self) -> list[Command]:
        """The orders since the last call. Never raises: a file that cannot be read gives none."""
        try:
            size = self._path.stat().st_size
            if size == self._offset:
                return []
            with open_regular(self._path) as file:
                found = os.fstat(file.fileno())
                if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
                    self._ignore("it must belong to this user, and nobody else may write to it (chmod 600)")
                    return []
                if size < self._offset:  # somebody has begun it anew
                    self._offset = 0
                if self._offset > _FILE_BYTES:
                    self._ignore(f"it is larger than {_FILE_BYTES} bytes")
                    return []
                file.seek(self._offset)
                content = file.read(_LINE_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._ignore(error.strerror or str(error))
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and len(content) == _LINE_BYTES:
            self._ignore("a line is too long")
            whole = content
        self._offset += len(whole)
        return [command for line in whole.splitlines() if (command := self._parsed(line)) is not None]

    def _parsed(self, line: bytes) -> Command | None:
        try:
            command = _command(parse_json(line))
        except (JsonError, ValueError, TypeError, KeyError, OverflowError):
            self._ignore("a line is not an order")
            return None
        if abs(self._clock() - command.made_at) > _FRESH_SECONDS:
            self._ignore("an order is old")
            return None
        return command

    def _ignore(self, why: str) -> None:
        if why not in self._complained:
            self._complained.add(why)
            self._complain(f"{self._path.name} is ignored: {why}")


def _command(value: Any) -> Command:
    """Raises ValueError, TypeError or KeyError if it is not an order."""
    victims, kind = value["victims"], value["kind"]
    if not isinstance(victims, list) or not all(isinstance(one, str) for one in victims):
        raise TypeError(victims)
    if kind not in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.CUT, HEAL) or len(victims) > _MOST_VICTIMS:
        raise ValueError(kind)
    seconds, made_at = float(value["seconds"]), float(value["made_at"])
    if not 0 <= seconds <= LONGEST_SECONDS or not isfinite(made_at):
        raise ValueError(seconds)
    return Command(str(value["id"])[:_ID_LENGTH], made_at, str(kind), tuple(victims), seconds, Manner(value["manner"]))
