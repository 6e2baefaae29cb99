"""Writes the summary, report, model and sample when a run has ended."""

import os
import shutil
from pathlib import Path

import torch

from diloco.learner.training.sample import SampleError, SampleOptions, sample_text
from diloco.local.directory import RunDirectory
from diloco.local.report.chaos_report import document, effects, observed_in
from diloco.local.report.history import RunHistory
from diloco.local.report.history_builder import HistoryBuilder
from diloco.local.report.html import render_report
from diloco.local.report.summary import summarize
from diloco.model import ModelError, load_model
from diloco.model.build import layout_of_job
from diloco.runtime.files import UnusableFileError, write_atomically, write_json_atomically
from diloco.runtime.journal import read_journal
from diloco.spec import DiLoCoJob, JobSpec
from diloco.syncer.disk.checkpoint import read_checkpoint_manifest
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.tape.gaps import missing_front
from diloco.tape.reader import TapeError, TapeReader
from diloco.tape.segments import find_tapes

_TOKENS = 400
_ENOUGH = 200
"""Letters. If a draw ends its document sooner, the next seed is tried, a few times."""
_TRIES = 4


def close_run(job: DiLoCoJob, directory: RunDirectory) -> RunHistory:
    """Write everything that a run leaves at its end, from what is on disk; may be repeated with the same result.

    Raises:
        OSError: the directory cannot be written.
        ModelError: the job's model cannot be built here.
    """
    builder = HistoryBuilder(job, layout_of_job(job.spec), read_journal(directory.journal))
    tapes = find_tapes(directory.syncer / "tape")
    if tapes and (missing := missing_front(tapes)):
        builder.notes.append(missing)
    for files in tapes:
        try:
            reader = TapeReader(files)
            builder.take(reader.header, reader)
        except TapeError as error:
            builder.notes.append(f"a part of the record is missing: {error}")
    checkpoints = directory.syncer / "checkpoints"
    if names := checkpoint_names(checkpoints):
        try:
            builder.bytes_by_region = read_checkpoint_manifest(checkpoints / names[-1]).bytes_by_region
        except UnusableFileError as error:
            builder.notes.append(f"bytes are not known: {error}")
    text = ""
    trained = directory.syncer / "model.safetensors"
    if trained.is_file():
        _share(trained, directory.model)
        try:
            text = _sample(directory.model, job.spec)
        except _NoSampleError as error:
            builder.notes.append(f"no sample of text was written: {error}")
        else:
            write_atomically(directory.sample, text + "\n")
    history = builder.history()
    write_json_atomically(directory.summary, summarize(history))
    if history.faults:
        write_json_atomically(directory.chaos, document(effects(history.faults, observed_in(history)), job=history.job))
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


class _NoSampleError(RuntimeError):
    """No sample can be generated; the text is one line that says why."""


def _sample(path: Path, spec: JobSpec) -> str:
    """Text that the model in ``path`` generates from the start of a document.

    Raises:
        _NoSampleError: the model cannot be read, is not a text model, or does not run on this machine.
    """
    longest = ""
    # Generating one token at a time is too little work for several threads: they would only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        module = load_model(path, spec.model).module
        for seed in range(_TRIES):
            options = SampleOptions(tokens=_TOKENS, seed=seed, context=spec.training.sequence_length)
            longest = max(longest, sample_text(module, "", options), key=len)
            if len(longest) >= _ENOUGH:
                break
    except (ModelError, SampleError) as error:
        raise _NoSampleError(str(error)) from error
    except Exception as error:  # the model may be the user's own code
        raise _NoSampleError(f"{path}: the model does not run here ({type(error).__name__}: {error})") from error
    finally:
        torch.set_num_threads(threads)
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in longest
    )
