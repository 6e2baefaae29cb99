"""Reads from the last tape what was merged after the checkpoint that a restarted syncer begins with.

Only a tape that provably continues the checkpoint counts: it is replayed through the engine, every decision has to come
out as it is on the tape, and on the way the engine has to be in the checkpoint's state. Otherwise the syncer goes on
from the checkpoint, as it would without a tape.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.snapshot import SnapshotError
from diloco.core.fragments import Layout, Match
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.sync import OuterOptimizer
from diloco.syncer.prepare import StartState
from diloco.syncer.recovery.tail import MadeVersion, Tail
from diloco.syncer.replay import difference
from diloco.tape.reader import TapeEntry, TapeError, TapeHeader, TapeReader, Torn, engine_of, merged_in, read_header
from diloco.tape.segments import TapeFiles, find_tapes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapeTail:
    """What the tape records beyond the checkpoint."""

    epoch: int
    """Number of the start that wrote the tape."""
    tail: Tail
    optimizer: OuterOptimizer
    """Of the merges on the tape."""

    def provable(self) -> dict[int, dict[int, MadeVersion]]:
        """By fragment and version: versions that differ from the checkpoint's, as far as the tape has their proof."""
        return {
            fragment: {one.version: one for one in made if one.steps and one.proof}
            for fragment, made in enumerate(self.tail.made)
        }

    def unchanged(self) -> dict[int, MadeVersion]:
        """By fragment: the newest version with the checkpoint's values, as all merges since then have failed."""
        return {
            fragment: [one for one in made if not one.steps][-1]
            for fragment, made in enumerate(self.tail.made)
            if made and not made[0].steps
        }


class TailError(ValueError):
    """The tape does not continue the checkpoint; one line that says why."""


def read_tail(directory: Path, job: str, start: StartState) -> TapeTail | None:
    """What the last tape in ``directory`` records of ``job`` beyond ``start``; None: nothing that can be used.

    It takes as long as a replay of the segments since the checkpoint. What is wrong with a tape is one line in the log.
    """
    tapes = find_tapes(directory)
    if start.engine is None or not tapes or tapes[-1].epoch < start.epoch:
        return None
    try:
        if not _has_newer(tapes[-1], job, start):  # as after a stop: most starts end here
            return None
        found = _read(tapes[-1], job, start, start.engine)
    except (TapeError, TailError, SnapshotError) as error:
        _log.warning("what was merged after checkpoint %s is not known: %s", start.checkpoint, error)
        return None
    if not any(found.provable().values()):
        return None
    _log.info(
        "epoch %d made %d versions after checkpoint %s, in %.1f s",
        found.epoch,
        sum(len(made) for made in found.tail.made),
        start.checkpoint,
        found.tail.seconds,
    )
    return found


def _has_newer(files: TapeFiles, job: str, start: StartState) -> bool:
    """Whether the last segment, or one before it, seems to have a version that is newer than the checkpoint's.

    Raises:
        TapeError: it cannot be read.
        TailError, SnapshotError: its header makes no sense.
    """
    header, versions = read_header(files.segments[-1]), start.store.versions
    options, _ = _options(header, job, start.layout)
    begun = engine_of(header, options).versions
    return any(theirs > ours for theirs, ours in zip(begun, versions, strict=True)) or any(
        fragment < len(versions) and version > versions[fragment] for fragment, version in merged_in(files.segments[-1])
    )


def _read(files: TapeFiles, job: str, start: StartState, saved: dict[str, Any]) -> TapeTail:
    """Replay a tape from a segment that begins before the checkpoint.

    Raises:
        TapeError: its header cannot be read.
        TailError: it does not continue the checkpoint.
        SnapshotError: a header's state makes no sense.
    """
    first, engine, options, outer = _beginning(files, job, start)
    tail = Tail(engine, saved, options.shares)
    for entry in _until_damage(TapeReader(TapeFiles(files.epoch, files.segments[first:]))):
        try:
            actions = tail.step(entry.event, entry.now)
        except (ArithmeticError, AssertionError, LookupError, ValueError) as error:
            raise TailError(f"{entry.file} seq {entry.seq}: the engine fails on this event: {error!r}") from error
        if different := difference(entry, actions):
            raise TailError(f"{entry.file} seq {entry.seq}: {different}")
    where = files.segments[first]
    if not tail.reached:
        raise TailError(f"{where}: the tape does not continue it")
    for fragment, (version, digest) in tail.digests.items():
        if start.store.current(fragment).digest.hex() != digest:
            raise TailError(f"{where}: version {version} of fragment {fragment} is another one there")
    return TapeTail(files.epoch, tail, outer)


def _beginning(files: TapeFiles, job: str, start: StartState) -> tuple[int, Engine, EngineOptions, OuterOptimizer]:
    """The last segment that begins before the checkpoint, and the engine there."""
    for first in reversed(range(len(files.segments))):
        header = read_header(files.segments[first])
        options, outer = _options(header, job, start.layout)
        engine = engine_of(header, options)
        if all(theirs <= ours for theirs, ours in zip(engine.versions, start.store.versions, strict=True)):
            return first, engine, options, outer
    raise TailError(f"{files.segments[0]}: the tape begins after it")


def _until_damage(reader: TapeReader) -> Iterator[TapeEntry]:
    """The entries up to a line that was changed or cut off: the chain of hashes vouches for those before it."""
    try:
        for entry in reader:
            if not isinstance(entry, Torn):
                yield entry
    except TapeError as error:
        _log.warning("the tape is used up to its damage: %s", error)


def _options(header: TapeHeader, name: str, layout: Layout) -> tuple[EngineOptions, OuterOptimizer]:
    """Options of the engine that wrote the tape, and the optimizer of its merges."""
    try:
        job = DiLoCoJob.model_validate(header.job)
    except ValueError as error:
        raise TailError(f"the tape's job is not valid ({type(error).__name__})") from error
    if job.metadata.name != name or layout.match(header.layout) is not Match.SAME:
        raise TailError("the tape is of another job or model")
    return EngineOptions.from_job(job, layout), OuterChoice.of(job.spec).optimizer
