"""The event tape: every event that the engine received and every action it ordered, in a chain of hashes.

A tape makes a run's decisions explainable and repeatable. Its first line holds the job, the model's layout and the
engine's state at the start of an epoch; every further line holds one event and the resulting actions. Each line's
``chain`` is a hash over the one before and itself, so a changed, dropped or swapped line is found. A syncer that is
killed while it writes leaves an incomplete last line, which is accepted and reported.

A cut leaves hashes that match. So a syncer that ends in order ends its tape with a line that says so, and the header of
the next epoch says where the tape before it ended.

The tape is cut into segments (`segments`). Each further segment begins with a header too, which holds the engine's
whole state at that line. So the oldest segments can be deleted, and what is left still replays. The chain goes on from
one segment to the next.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import Event
from diloco.core.engine.options import RULES
from diloco.core.fragments import FragmentTable
from diloco.runtime.json_text import JsonError, parse_json
from diloco.runtime.plain import PlainError, from_plain
from diloco.tape.records import action_from, event_from
from diloco.tape.segments import DAMAGED, TapeFiles, open_segment, plain_path, segment_number, segment_path

FORMAT = 1
_CHAIN_KEY = b',"chain":"'
_LINE_LIMIT_BYTES = 256 << 20
"""Longest line. A header has some numbers per fragment and learner; no real one comes near this."""


class TapeError(ValueError):
    """A file that is not a valid tape; the text names the file, the line's ``seq`` and what is wrong."""

    def __init__(self, file: Path, seq: int, problem: str) -> None:
        super().__init__(f"{file} seq {seq}: {problem}")
        self.file = file
        self.seq = seq
        self.problem = problem


@dataclass(frozen=True, slots=True)
class TapeHeader:
    """First line of a segment."""

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
    """The engine's snapshot at the start of the epoch; empty for a new job, and in further segments."""
    started_at: float
    """Wall-clock time, in seconds since 1970. For display only; no decision depends on it."""
    rules: int
    """`diloco.core.engine.options.RULES` of the engine that decided."""
    tensors: tuple[FragmentTable, ...]
    """``Layout.table`` of the model, so that it need not be built."""
    state: dict[str, Any] = field(default_factory=dict)
    """The engine's whole state at this line (`core.engine.snapshot`); empty in an epoch's first segment."""
    now: float = 0.0
    """The engine's clock at this line, in seconds."""
    previous: str = ""
    """Name of the last segment of the epoch before; empty: there was none."""
    previous_seq: int = 0
    """Number of the last whole line of that segment."""
    previous_chain: str = ""
    """Its chain."""


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
class TapeEnd:
    """The last line of a tape that was not cut off: the syncer ended in order, or the job was over."""

    model: str = ""
    """SHA-256 of the model that the syncer has exported, hexadecimal; empty: it has exported none."""


@dataclass(frozen=True, slots=True)
class Torn:
    """Stands for an incomplete last line of a segment: the syncer was killed while it wrote, or the disk was full."""

    file: Path
    seq: int
    """Number the line would have had."""


def seal(body: dict[str, Any], chain: str) -> tuple[bytes, str]:
    """The line for ``body``, with its newline, after a line with ``chain``; and the new line's own chain."""
    text = json.dumps(body, separators=(",", ":")).encode()
    following = _hash(chain, text)
    return text[:-1] + _CHAIN_KEY + following.encode() + b'"}\n', following


def header_line(header: TapeHeader, seq: int = 0, chain: str = "") -> tuple[bytes, str]:
    """The first line of a segment, after a line with ``chain``; and its own chain."""
    # The engine's state is large, and ``asdict`` would copy it.
    fields = {**asdict(replace(header, state={})), "state": header.state}
    after = {"after": chain} if seq else {}
    return seal({"seq": seq, "format": FORMAT, **after, "header": fields}, chain)


def read_header(path: Path) -> TapeHeader:
    """The header of a segment.

    Raises:
        TapeError: it is missing, changed or of another format.
    """
    return _first_line(path)[0]


def end_line(end: TapeEnd, seq: int, chain: str) -> tuple[bytes, str]:
    """The line that ends a tape, after a line with ``chain``; and its own chain."""
    return seal({"seq": seq, "end": asdict(end)}, chain)


def last_line(path: Path) -> tuple[int, str]:
    """Number and chain of the last whole line of a segment, not checked against the lines before it.

    Raises:
        TapeError: there is none, or the file cannot be read.
    """
    found = b""
    for line in _lines(path, 0):
        found = line if line.endswith(b"\n") else found
    seq, cut = _parsed(path, found, 0).get("seq"), found.rfind(_CHAIN_KEY)
    if type(seq) is not int:
        raise TapeError(path, 0, "no line of this segment is whole")
    return seq, found[cut + len(_CHAIN_KEY) :].removesuffix(b'"}\n').decode(errors="replace")


def engine_of(header: TapeHeader, options: EngineOptions) -> Engine:
    """The engine as it was at a header's line; ``options`` are those of the header's job.

    Raises:
        SnapshotError: the header's snapshot or state is not one of this job.
    """
    if header.state:
        return Engine.from_image(options, header.epoch, header.state)
    return Engine(options, header.epoch, header.engine or None)


class TapeReader:
    """Reads one epoch's tape from the first segment that is there, and checks the chain.

    ``header`` is available from the start; iterating yields ``TapeEntry`` and, if the last line is incomplete,
    ``Torn``.
    """

    def __init__(self, files: TapeFiles) -> None:
        """Open the tape.

        Raises:
            TapeError: the header of the first segment is missing or invalid.
        """
        self._files = files
        self.header, self.first_seq, self._before = _first_line(files.segments[0])
        """``first_seq``: the header's line; not 0 if the segments before it are not there."""
        self.seq, self.chain = self.first_seq, self._before
        """Of the last line that was read."""
        self.end: TapeEnd | None = None
        """The line that ends the tape, once it was read; None: there was none."""

    def __iter__(self) -> Iterator[TapeEntry | Torn]:
        """Read the tape's lines in order.

        Raises:
            TapeError: a line is changed, missing or out of order, or a file cannot be read.
        """
        seq, chain = self.first_seq, self._before
        segments = self._files.segments
        for number, path in enumerate(segments, segment_number(segments[0])):
            if plain_path(path) != segment_path(path.parent, self._files.epoch, number):
                raise TapeError(
                    path, seq, f"segment {number} of epoch {self._files.epoch}, before this one, is missing"
                )
            for line in _lines(path, seq):
                if not line.endswith(b"\n"):
                    if path != segments[-1]:
                        raise TapeError(path, seq, "the line is cut off, but the tape continues after it")
                    yield Torn(path, seq)
                    return
                plain, chain = _opened(path, line, seq, chain)
                if self.end is not None:
                    raise TapeError(path, seq, "the tape continues after the line that ends it")
                self.seq, self.chain = seq, chain
                if "end" in plain:
                    self.end = _end(path, plain)
                elif "header" not in plain:
                    yield _entry(path, plain)
                seq += 1


def _lines(path: Path, seq: int) -> Iterator[bytes]:
    """The lines of a segment. Errors name ``seq`` and what follows."""
    try:
        with open_segment(path) as file:
            while line := file.readline(_LINE_LIMIT_BYTES):
                yield line
                seq += 1
    except DAMAGED as error:
        raise TapeError(path, seq, f"the compressed segment is cut off or was changed ({error})") from error
    except OSError as error:
        raise TapeError(path, seq, f"{error.strerror or error}") from error


def _first_line(path: Path) -> tuple[TapeHeader, int, str]:
    """A segment's header, its line's number, and the chain before it."""
    line = next(_lines(path, 0), b"")
    seq: Any = 0
    before: Any = ""
    if segment_number(path) > 0:
        if not line.endswith(b"\n"):
            raise TapeError(path, 0, "the tape begins here, but no line of this segment is complete")
        plain = _parsed(path, line, 0)
        seq, before = plain.get("seq"), plain.get("after")
        if type(seq) is not int or not isinstance(before, str):
            raise TapeError(path, 0, "the tape begins here, and this segment has no state to begin with")
    return _header(path, _opened(path, line, seq, before)[0]), seq, before


def _hash(chain: str, text: bytes) -> str:
    return hashlib.blake2b(chain.encode() + text, digest_size=16).hexdigest()


def _parsed(path: Path, line: bytes, seq: int) -> dict[str, Any]:
    """The body of a line, not checked against its chain."""
    cut = line.rfind(_CHAIN_KEY)
    try:
        plain = parse_json(line[:cut] + b"}") if cut >= 0 else None
    except JsonError as error:
        raise TapeError(path, seq, str(error)) from error
    return plain if isinstance(plain, dict) else {}


def _opened(path: Path, line: bytes, seq: int, chain: str) -> tuple[dict[str, Any], str]:
    """The body of a line, after checking its chain; and its chain."""
    cut = line.rfind(_CHAIN_KEY)
    claimed = line[cut + len(_CHAIN_KEY) :].removesuffix(b'"}\n')
    following = _hash(chain, line[:cut] + b"}")
    if cut < 0 or claimed != following.encode():
        raise TapeError(path, seq, "the line, or one before it, was changed: its hash does not match")
    plain = _parsed(path, line, seq)
    if plain.get("seq") != seq:
        raise TapeError(path, seq, f"the line is not number {seq}")
    return plain, following


def _header(path: Path, plain: dict[str, Any]) -> TapeHeader:
    if plain.get("format") != FORMAT:
        raise TapeError(path, 0, _other("tape format", plain.get("format"), FORMAT))
    try:
        header = from_plain(TapeHeader, plain.get("header"))
    except PlainError as error:
        raise TapeError(path, 0, str(error)) from error
    if header.rules != RULES:
        raise TapeError(path, 0, _other("engine rules", header.rules, RULES))
    if segment_number(path) > 0 and not header.state:
        raise TapeError(path, 0, "its header has no state of the engine to begin with")
    return header


def _end(path: Path, plain: dict[str, Any]) -> TapeEnd:
    try:
        return from_plain(TapeEnd, plain["end"])
    except PlainError as error:
        raise TapeError(path, plain["seq"], str(error)) from error


def _other(what: str, found: Any, ours: int) -> str:
    return f"{what}: {found!r} is not {ours}, which this version of diloco reads; use the version that wrote the tape"


def _entry(path: Path, plain: dict[str, Any]) -> TapeEntry:
    try:
        event = event_from(plain["event"])
        actions = tuple(action_from(action) for action in plain["actions"])
        return TapeEntry(path, plain["seq"], float(plain["now"]), event, actions)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TapeError(path, plain["seq"], str(error)) from error
