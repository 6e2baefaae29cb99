"""Runs a syncer's tape through the same engine and compares every decision; redoes recorded merges to the bit.

The engine's decisions are a function of the events, so a replay must give the same tape: if not, the tape was changed
or the program is another version. If payloads were kept (``--record``), the merges are redone from the checkpoint that
the tape begins with, and every new fragment must have the digest on the tape.

A tape whose end was cut off has hashes that match. It is found by its missing last line, or by what went on after it:
the next epoch's tape, checkpoints, curves. Checkpoints and the exported model must be those of the tape.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import ValidationError

from diloco.core.engine.actions import Action, CancelTimer, Finish, Merge, SetTimer
from diloco.core.engine.engine import EngineOptions
from diloco.core.engine.events import Merged
from diloco.core.fragments import Layout, LayoutError, Match, layout_from_table
from diloco.core.merge.codecs import uplink_codec
from diloco.runtime.files import UnusableFileError
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import OuterChoice
from diloco.syncer.disk.checkpoint import load_checkpoint
from diloco.syncer.disk.payload_files import payload_path, read_payload
from diloco.syncer.disk.replayed_files import Computed, ReplayedFiles
from diloco.syncer.errors import SyncerError
from diloco.syncer.merging import Merging
from diloco.syncer.prepare import empty_store, fill_from
from diloco.tape.explain import describe
from diloco.tape.gaps import missing_between, missing_end, missing_front
from diloco.tape.reader import TapeEnd, TapeEntry, TapeError, TapeHeader, TapeReader, Torn, engine_of
from diloco.tape.records import to_plain
from diloco.tape.segments import TapeFiles, find_tapes
from diloco.wire.messages import PushKey

if TYPE_CHECKING:
    from diloco.syncer.store import FragmentStore


class ReplayError(ValueError):
    """There is nothing that can be replayed; one line that says why."""


@dataclass(frozen=True, slots=True)
class ReplayProblem:
    """A difference from the syncer's run."""

    file: Path
    seq: int
    """Line of the tape, the header being 0; -1: the file is no tape."""
    text: str

    def __str__(self) -> str:
        return f"{self.file} seq {self.seq}: {self.text}" if self.seq >= 0 else f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class EpochReplay:
    """One epoch of the syncer, replayed."""

    epoch: int
    events: int = 0
    decisions: int = 0
    """Number of actions that came out the same."""
    merges: int = 0
    """Number of merges on the tape."""
    merges_redone: int = 0
    """Number of merges done again with the same result, to the bit."""
    recorded: bool = False
    """Payloads were kept."""
    first_seq: int = 0
    """Line from which it was replayed; not 0 if the segments before that are not there. Then no merge is redone, as
    the tensors at that line are not known."""
    torn: Torn | None = None
    """The tape ends within a line, as the syncer was killed while it wrote. Not a problem, but reported."""
    end: TapeEnd | None = None
    """The line that ends the tape; None: the syncer was killed, or still runs, or the tape was cut off."""
    over: bool = False
    """The job's end is on the tape."""
    last: tuple[int, str] = (0, "")
    """Number and chain of the last line, if all of the tape was replayed."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay."""

    epochs: tuple[EpochReplay, ...]
    problems: tuple[ReplayProblem, ...]
    missing: str = ""
    """What is missing at the start of the tape, in one line; empty if nothing is. Reported, but not a problem."""
    unchecked: tuple[str, ...] = ()
    """Files in the directory whose content no part of the replay depends on."""
    explanation: Iterator[str] = field(default_factory=lambda: iter(()))
    """Every decision with its reason, one line each; read from the tape while iterating. Empty unless requested."""

    @property
    def ok(self) -> bool:
        """Whether everything came out the same."""
        return not self.problems


Before = tuple[TapeFiles, EpochReplay] | None
"""The epoch before, and its replay."""


def replay(directory: Path, *, explain: bool = False) -> ReplayReport:
    """Replay every tape in a syncer's directory, or in the output directory of a run that holds one as ``syncer``.

    A tape is data: nothing that it names is imported.

    Raises:
        ReplayError: there is no tape.
    """
    root = directory if (directory / "tape").is_dir() else directory / "syncer"
    tapes = find_tapes(root / "tape")
    if not tapes:
        raise ReplayError(f"{directory}: has no tape (tape/NNNNNN.jsonl); use the directory of a run")
    epochs: list[EpochReplay] = []
    problems: list[ReplayProblem] = []
    kept = ReplayedFiles(directory, root)
    before: Before = None
    for files in tapes:
        epoch, found = _replay_epoch(root, files, before, kept)
        epochs.append(epoch)
        problems += found
        before = files, epoch
    problems += _cut_at_the_end(tapes[-1], epochs[-1])
    if exported := exported_model(epochs):
        kept.check_model(exported)
    problems += [ReplayProblem(path, -1, text) for path, text in kept.problems]
    explanation = explain_tapes(tapes) if explain else iter(())
    return ReplayReport(tuple(epochs), tuple(problems), missing_front(tapes), kept.unchecked(), explanation)


def explain_tapes(tapes: tuple[TapeFiles, ...]) -> Iterator[str]:
    """Every decision on the tapes, with reason, one line each; a tape that cannot be read ends with an error line."""
    for files in tapes:
        try:
            for entry in TapeReader(files):
                if isinstance(entry, Torn):
                    yield f"epoch {files.epoch} seq {entry.seq}: the tape ends within this line"
                    continue
                for action in entry.actions:
                    if not isinstance(action, SetTimer | CancelTimer):
                        yield f"epoch {files.epoch} seq {entry.seq} at {entry.now:.3f} s: {describe(action)}"
        except TapeError as error:
            yield str(error)


def exported_model(epochs: Sequence[EpochReplay]) -> str:
    """SHA-256 of the model that was exported last; empty: there is none, or a later epoch may have exported another."""
    for epoch in reversed(epochs):
        if epoch.end is None or epoch.end.model or epoch.over:
            return epoch.end.model if epoch.end is not None else ""
    return ""


def _cut_at_the_end(files: TapeFiles, epoch: EpochReplay) -> list[ReplayProblem]:
    if epoch.end is not None or not epoch.over or not epoch.last[1]:
        return []
    text = f"the tape ends at line {epoch.last[0]} without its last line, although the job was over: it was cut off"
    return [ReplayProblem(files.segments[-1], epoch.last[0], f"{text}, or the syncer was killed just then")]


def _replay_epoch(
    root: Path, files: TapeFiles, before: Before, kept: ReplayedFiles
) -> tuple[EpochReplay, list[ReplayProblem]]:
    try:
        return _Epoch(root, files, before, kept).run()
    except TapeError as error:
        return EpochReplay(files.epoch), [ReplayProblem(error.file, error.seq, error.problem)]


class _Epoch:
    """The replay of one tape, as far as it gets."""

    def __init__(self, root: Path, files: TapeFiles, before: Before, kept: ReplayedFiles) -> None:
        self._reader, self._files, self._kept = TapeReader(files), files, kept
        header, first, seq = self._reader.header, files.segments[0], self._reader.first_seq
        job = _job(first, header)
        layout = _layout(first, header, job)
        try:
            self._engine = engine_of(header, EngineOptions.from_job(job, layout))
        except ValueError as error:
            raise TapeError(first, seq, str(error)) from error
        self._job, self._layout = job.metadata.name, layout
        self._merges = _Merges(root, job, layout, kept.checked)
        self._digests: dict[int, str] = {}
        if header.record and not seq:
            self._merges.begin(first, header)
        self._done = EpochReplay(files.epoch, recorded=header.record, first_seq=seq)
        self._problems: list[ReplayProblem] = []
        if self._merges.store is not None:
            now = self._merges.store
            self._digests = {one.index: now.current(one.index).digest.hex() for one in layout.fragments}
        if before is None:
            return
        if gap := missing_between(before[0], files, header):
            self._problems.append(ReplayProblem(first, seq, gap))
        elif before[1].last[1] and (cut := missing_end(before[1].last, header)):
            self._problems.append(ReplayProblem(before[0].segments[-1], before[1].last[0], cut))

    def run(self) -> tuple[EpochReplay, list[ReplayProblem]]:
        """Replay the tape to its end, or until a difference makes the rest meaningless."""
        first = self._engine.versions
        self._compare()
        try:
            for entry in self._reader:
                if isinstance(entry, Torn):
                    self._done = replace(self._done, torn=entry)
                elif not self._step(entry):
                    break
            else:
                self._ended(first)
        except TapeError as error:
            self._problems.append(ReplayProblem(error.file, error.seq, error.problem))
        else:
            self._kept.checked.update(self._files.segments)
        return self._done, self._problems + self._merges.problems

    def _compare(self) -> None:
        engine, merges = self._engine, self._merges
        now = Computed(engine.versions, engine.fragment_tokens, self._digests, merges.store)
        self._kept.compare(self._done.epoch, self._job, self._layout, now)

    def _ended(self, first: tuple[int, ...]) -> None:
        reader, done = self._reader, self._done
        self._done = replace(done, end=reader.end, last=(reader.seq, reader.chain))
        if more := self._kept.went_on(done.epoch, self._engine.versions):
            text = f"the tape ends at line {reader.seq}, the run went on to {more}"
            self._problems.append(ReplayProblem(self._files.segments[-1], reader.seq, text))
        else:
            self._kept.never_met(done.epoch, first)

    def _step(self, entry: TapeEntry) -> bool:
        done = self._done
        if isinstance(entry.event, Merged):
            redone = self._merges.redo(entry, entry.event)
            done = replace(done, merges=done.merges + 1, merges_redone=done.merges_redone + redone)
        tokens = self._engine.fragment_tokens
        try:
            actions = self._engine.step(entry.event, entry.now)
        except (ArithmeticError, AssertionError, LookupError, ValueError) as error:
            differs = f"the engine fails on this event: {error!r}"
        else:
            differs = difference(entry, actions)
            self._merges.order(actions)
        if differs:
            # From here on the engine's state differs from the syncer's.
            self._problems.append(ReplayProblem(entry.file, entry.seq, differs))
            return False
        over = done.over or any(isinstance(action, Finish) for action in actions)
        self._done = replace(done, events=done.events + 1, decisions=done.decisions + len(actions), over=over)
        if isinstance(entry.event, Merged):
            self._digests[entry.event.fragment] = entry.event.digest
        if isinstance(entry.event, Merged) or self._engine.fragment_tokens != tokens:
            self._compare()
        return True


class _Merges:
    """Redoes the merges of one recorded tape. It stops after the first problem, as later merges build on it."""

    def __init__(self, root: Path, job: DiLoCoJob, layout: Layout, checked: set[Path]) -> None:
        self._root, self._checked = root, checked
        self._job = job
        self._layout = layout
        self._codec = uplink_codec(job.spec.sync)
        self._merging = Merging(layout, job.spec.sync, OuterChoice.of(job.spec).optimizer)
        self.store: FragmentStore | None = None
        self._orders: dict[tuple[int, int], Merge] = {}
        self.problems: list[ReplayProblem] = []

    def begin(self, file: Path, header: TapeHeader) -> None:
        """Load the checkpoint that the tape begins with."""
        try:
            base = load_checkpoint(
                self._root / "checkpoints", header.base_checkpoint, self._layout, self._job.metadata.name
            )
        except (UnusableFileError, SyncerError) as error:
            self._problem(file, 0, f"merges cannot be redone without their checkpoint: {error}")
            return
        store = empty_store(self._job, self._layout)
        fill_from(store, base)
        self.store = store

    def order(self, actions: list[Action]) -> None:
        """Remember the merges among these actions."""
        for action in actions:
            if isinstance(action, Merge):
                self._orders[action.fragment, action.version] = action

    def redo(self, entry: TapeEntry, event: Merged) -> bool:
        """Do a merge again; returns whether it came out the same. False, too, if it cannot be tried."""
        order = self._orders.pop((event.fragment, event.version), None)
        if self.store is None:
            return False
        if order is None:
            self._problem(
                entry.file, entry.seq, f"version {event.version} of fragment {event.fragment} was not ordered"
            )
            return False
        digests = {member.learner: member.digest for member in order.members}
        payload_bytes = self._codec.payload_bytes(self._layout.fragments[order.fragment].numel)

        def payload_of(key: PushKey) -> torch.Tensor:
            payload = read_payload(self._root / "payloads", digests[key.learner], payload_bytes)
            self._checked.add(payload_path(self._root / "payloads", digests[key.learner]))
            return payload

        try:
            result = self._merging.run(self._merging.prepare(order, self.store, payload_of))
        except UnusableFileError as error:
            self._problem(entry.file, entry.seq, str(error))
            return False
        made = result.event
        if made.digest != event.digest:
            text = f"version {event.version} of fragment {event.fragment} comes out as {made.digest}"
            self._problem(entry.file, entry.seq, f"{text}, not {event.digest}")
            return False
        self.store.commit(made.fragment, made.version, result.made, result.digest, result.update)
        return True

    def _problem(self, file: Path, seq: int, text: str) -> None:
        self.store = None
        self.problems.append(ReplayProblem(file, seq, text))


def _job(file: Path, header: TapeHeader) -> DiLoCoJob:
    """The tape's job.

    Raises:
        TapeError: it is not a valid job.
    """
    try:
        return DiLoCoJob.model_validate(header.job)
    except ValidationError as error:
        raise TapeError(file, 0, f"its job is not valid ({error.error_count()} problems)") from error


def _layout(file: Path, header: TapeHeader, job: DiLoCoJob) -> Layout:
    """The sizes of the tape's model.

    Raises:
        TapeError: they are not those that the syncer had.
    """
    try:
        layout = layout_from_table(header.tensors)
    except LayoutError as error:
        raise TapeError(file, 0, f"its model is not valid ({error})") from error
    if len(layout.fragments) != job.spec.sync.fragments:
        text = f"its model has {len(layout.fragments)} fragments, its job {job.spec.sync.fragments}"
        raise TapeError(file, 0, text)
    if layout.match(header.layout) is Match.OTHER_CUT:
        text = f"the model is cut into {layout.cut[:12]} here, but was into {header.layout[:12]}: another version of it"
        raise TapeError(file, 0, text)
    return layout


def difference(entry: TapeEntry, actions: list[Action]) -> str:
    """How the engine's actions differ from those on the tape; empty if they do not."""
    if tuple(actions) == entry.actions:  # text for what is left: it takes longer
        return ""
    for index in range(max(len(actions), len(entry.actions))):
        ours = _text(actions[index]) if index < len(actions) else "nothing"
        theirs = _text(entry.actions[index]) if index < len(entry.actions) else "nothing"
        if ours != theirs:
            return f"action {index + 1} is {ours}, on the tape it is {theirs}"
    return ""


def _text(action: Action) -> str:
    # Compared as text, because NaN differs from itself. Reasons are left out: another version may word them
    # differently.
    return json.dumps({name: value for name, value in to_plain(action).items() if name != "reason"})
