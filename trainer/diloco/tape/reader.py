"""The event tape: every event that the engine received and every action it ordered, in a chain of hashes.

A tape makes a run's decisions explainable and repeatable. Its first line holds the job, the model's layout and the
engine's state at the start of an epoch; every further line holds one event and the resulting actions. Each line's
``chain`` is a hash over the one before and itself, so a changed, dropped or swapped line is found. A syncer that is
killed while it writes leaves an incomplete last line, which is accepted and reported.

One epoch (one syncer process) makes one tape, ``NNNNNN.jsonl``. When it reaches a size, it continues in further
segments ``NNNNNN.MMMM.jsonl`` with the same chain.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diloco.core.actions import Action
from diloco.core.events import Event
from diloco.core.fragments import FragmentTable
from diloco.runtime.files import open_regular
from diloco.runtime.json_text import JsonError, parse_json
from diloco.spec.words import listed
from diloco.tape.records import RecordError, action_from, build, event_from

FORMAT = 3
_READ = (1, 2, FORMAT)
"""Format 1 does not name the engine's rules: they are the first ones. Formats before 3 lack the model's sizes."""
_SEGMENT = re.compile(r"^(\d{6,})(?:\.(\d{4,}))?\.jsonl$")
_CHAIN_KEY = b',"chain":"'
_LINE_LIMIT_BYTES = 256 << 20
"""Longest line. A header has one number per fragment and learner; no real one comes near this."""


class TapeError(ValueError):
    """A file that is not a valid tape; the text names the file, the line's ``seq`` and what is wrong."""

    def __init__(self, file: Path, seq: int, problem: str) -> None:
        super().__init__(f"{file} seq {seq}: {problem}")
        self.file = file
        self.seq = seq
        self.problem = problem


@dataclass(frozen=True, slots=True)
class TapeHeader:
    """First line of an epoch's tape."""

    job: dict[str, Any]
    """The manifest, as JSON."""
    layout: str
    """Digest of the model's layout."""
    epoch: int
    base_checkpoint: str
    """Name of the checkpoint whose tensors the epoch began with; empty if there is none."""
    record: bool
    """Whether the payloads of all merges are kept."""
    engine: dict[str, Any]
    """The engine's snapshot at the start; empty for a new job."""
    started_at: float
    """Wall-clock time, in seconds since 1970. For display only; no decision depends on it."""
    rules: int = 1
    """The `diloco.core.options.Rules` by which the engine decided."""
    tensors: tuple[FragmentTable, ...] = ()
    """``Layout.table`` of the model, so that it need not be built. Empty: written by an earlier version."""


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One event and the engine's actions on it."""

    file: Path
    seq: int
    """Counted from 1 within an epoch; the header is 0."""
    now: float
    """The engine's clock, in seconds."""
    event: Event
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Torn:
    """Stands for an incomplete last line of a segment: the syncer was killed while it wrote, or the disk was full."""

    file: Path
    seq: int
    """Number the line would have had."""


@dataclass(frozen=True, slots=True)
class TapeFiles:
    """One epoch's tape on disk."""

    epoch: int
    segments: tuple[Path, ...]


def seal(body: dict[str, Any], chain: str) -> tuple[bytes, str]:
    """The line for ``body``, with its newline, after a line with ``chain``; and the new line's own chain."""
    text = json.dumps(body, separators=(",", ":")).encode()
    following = _hash(chain, text)
    return text[:-1] + _CHAIN_KEY + following.encode() + b'"}\n', following


def header_line(header: TapeHeader) -> tuple[bytes, str]:
    """The first line of a tape and its chain."""
    return seal({"seq": 0, "format": FORMAT, "header": asdict(header)}, "")


def segment_path(directory: Path, epoch: int, segment: int) -> Path:
    """Path of an epoch's segment, counted from 0."""
    return directory / (f"{epoch:06d}.jsonl" if segment == 0 else f"{epoch:06d}.{segment:04d}.jsonl")


def find_tapes(directory: Path) -> tuple[TapeFiles, ...]:
    """The tapes in a directory, oldest epoch first, each with its segments in order."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        if match := _SEGMENT.match(path.name):
            found.setdefault(int(match[1]), []).append((int(match[2] or 0), path))
    return tuple(TapeFiles(epoch, tuple(path for _, path in sorted(found[epoch]))) for epoch in sorted(found))


def read_header(path: Path) -> TapeHeader:
    """The header of a tape's first segment.

    Raises:
        TapeError: it is missing, changed or of another format.
    """
    try:
        with open_regular(path) as file:
            line = file.readline(_LINE_LIMIT_BYTES)
    except OSError as error:
        raise TapeError(path, 0, f"{error.strerror or error}") from error
    return _header(path, _opened(path, line, 0, "")[0])


class TapeReader:
    """Reads one epoch's tape from its first segment and checks the chain.

    ``header`` is available from the start; iterating yields ``TapeEntry`` and, if the last line is incomplete,
    ``Torn``.
    """

    def __init__(self, files: TapeFiles) -> None:
        """Open the tape.

        Raises:
            TapeError: the first segment is missing or its header is invalid.
        """
        first = files.segments[0]
        if first.name != segment_path(first.parent, files.epoch, 0).name:
            text = f"the tape of epoch {files.epoch} begins here; its earlier segments were dropped to save space"
            raise TapeError(first, 0, text)
        self._files = files
        self.header = read_header(first)

    def __iter__(self) -> Iterator[TapeEntry | Torn]:
        """Read the tape's lines in order.

        Raises:
            TapeError: a line is changed, missing or out of order.
        """
        seq, chain = 0, ""
        for number, path in enumerate(self._files.segments):
            if path != segment_path(path.parent, self._files.epoch, number):
                raise TapeError(
                    path, seq, f"segment {number} of epoch {self._files.epoch}, before this one, is missing"
                )
            with open_regular(path) as file:
                while line := file.readline(_LINE_LIMIT_BYTES):
                    if not line.endswith(b"\n"):
                        if number < len(self._files.segments) - 1:
                            raise TapeError(path, seq, "the line is cut off, but the tape continues after it")
                        yield Torn(path, seq)
                        return
                    plain, chain = _opened(path, line, seq, chain)
                    if seq > 0:
                        yield _entry(path, plain)
                    seq += 1


def _hash(chain: str, text: bytes) -> str:
    return hashlib.blake2b(chain.encode() + text, digest_size=16).hexdigest()


def _opened(path: Path, line: bytes, seq: int, chain: str) -> tuple[dict[str, Any], str]:
    """The body of a line, after checking its chain; and its chain."""
    cut = line.rfind(_CHAIN_KEY)
    text = line[:cut] + b"}"
    claimed = line[cut + len(_CHAIN_KEY) :].removesuffix(b'"}\n')
    following = _hash(chain, text)
    if cut < 0 or claimed != following.encode():
        raise TapeError(path, seq, "the line, or one before it, was changed: its hash does not match")
    try:
        plain = parse_json(text)
    except JsonError as error:
        raise TapeError(path, seq, str(error)) from error
    if not isinstance(plain, dict) or plain.get("seq") != seq:
        raise TapeError(path, seq, f"the line is not number {seq}")
    return plain, following


def _header(path: Path, plain: dict[str, Any]) -> TapeHeader:
    if plain.get("format") not in _READ:
        raise TapeError(path, 0, f"tape format {plain.get('format')!r}; this version reads {listed(_READ, 'and')}")
    try:
        header: TapeHeader = build(TapeHeader, plain.get("header"))
    except RecordError as error:
        raise TapeError(path, 0, str(error)) from error
    return header


def _entry(path: Path, plain: dict[str, Any]) -> TapeEntry:
    try:
        event = event_from(plain["event"])
        actions = tuple(action_from(action) for action in plain["actions"])
        return TapeEntry(path, plain["seq"], float(plain["now"]), event, actions)
    except (RecordError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise TapeError(path, plain["seq"], str(error)) from error
