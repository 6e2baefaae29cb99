"""Writes the summary, report, model and sample when a run has ended."""

import os
import shutil
from pathlib import Path

from diloco.local.directory import RunDirectory
from diloco.local.journal import read_journal
from diloco.local.report.chaos_report import document, effects, observed_in
from diloco.local.report.history import RunHistory
from diloco.local.report.history_builder import HistoryBuilder
from diloco.local.report.html import render_report
from diloco.local.report.sample import NoSampleError, write_text
from diloco.local.report.summary import summarize
from diloco.model import layout_of_job
from diloco.runtime.files import UnusableFileError, write_atomically, write_json_atomically
from diloco.spec import DiLoCoJob
from diloco.syncer.disk.checkpoint import checkpoint_names, read_checkpoint_manifest
from diloco.tape.gaps import missing_front
from diloco.tape.reader import TapeError, TapeReader
from diloco.tape.segments import find_tapes


def close_run(job: DiLoCoJob, directory: RunDirectory) -> RunHistory:
    """Write everything that a run leaves at its end, from what is on disk; may be repeated with the same result.

    Raises:
        OSError: the directory cannot be written.
        ModelError: the job's model cannot be built here.
    """
    builder = HistoryBuilder(job, layout_of_job(job.spec), read_journal(directory.journal))
    tapes = find_tapes(directory.syncer / "tape")
    if tapes and (missing := missing_front(tapes)):
        builder.note(missing)
    for files in tapes:
        try:
            reader = TapeReader(files)
            builder.take(reader.header, reader)
        except TapeError as error:
            builder.note(f"a part of the record is missing: {error}")
    checkpoints = directory.syncer / "checkpoints"
    if names := checkpoint_names(checkpoints):
        try:
            builder.count_bytes(read_checkpoint_manifest(checkpoints / names[-1]).bytes_by_region)
        except UnusableFileError as error:
            builder.note(f"bytes are not known: {error}")
    text = ""
    trained = directory.syncer / "model.safetensors"
    if trained.is_file():
        _share(trained, directory.model)
        try:
            text = write_text(directory.model, job.spec)
        except NoSampleError as error:
            builder.note(f"no sample of text was written: {error}")
        else:
            write_atomically(directory.sample, text + "\n")
    history = builder.history()
    write_json_atomically(directory.summary, summarize(history))
    if history.faults:
        write_json_atomically(directory.chaos, document(effects(*observed_in(history)), job=history.job))
    write_atomically(directory.report, render_report(history, text))
    return history


def _share(source: Path, target: Path) -> None:
    """Hard-link the file if the file system allows it, else copy it; neither name is written to again."""
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    partial.replace(target)
