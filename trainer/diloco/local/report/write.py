"""Writes the summary, report, model and sample when a run has ended."""

import os
import shutil
from pathlib import Path

import torch

from diloco.learner.training.sample import SampleError, SampleOptions, sample_text
from diloco.local.directory import RunDirectory
from diloco.local.report.chaos_report import document, effects
from diloco.local.report.history import RunHistory
from diloco.local.report.html import render_report
from diloco.local.report.record import RunRecord
from diloco.local.report.summary import summarize
from diloco.local.status_poll import StatusError, read_status
from diloco.model import ModelError, load_model
from diloco.runtime.files import write_atomically, write_json_atomically
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.status.engine import Phase
from diloco.spec.status.syncer import SyncerStatus

_TOKENS = 400
_ENOUGH = 200
"""Letters. If a draw ends its document sooner, the next seed is tried, a few times."""
_TRIES = 4


def close_run(job: DiLoCoJob, directory: RunDirectory) -> RunHistory:
    """Write everything that a run leaves at its end, from what is on disk; may be repeated with the same result.

    Raises:
        OSError: the directory cannot be written.
    """
    notes: list[str] = []
    try:
        status = read_status(directory.syncer)
    except StatusError as error:
        status = _unknown(job)
        notes.append(f"the figures are not known: {error}")
    text = ""
    trained = directory.syncer / "model.safetensors"
    if trained.is_file():
        _share(trained, directory.model)
        try:
            text = _sample(directory.model, job.spec)
        except _NoSampleError as error:
            notes.append(f"no sample of text was written: {error}")
        else:
            write_atomically(directory.sample, text + "\n")
    history = RunRecord(directory.syncer).history(status, None, notes)
    write_json_atomically(directory.summary, summarize(history))
    if history.faults:
        write_json_atomically(directory.chaos, document(effects(history), job=history.job))
    write_atomically(directory.report, render_report(history, text))
    return history


def _unknown(job: DiLoCoJob) -> SyncerStatus:
    """The status of a job of which nothing is known."""
    return SyncerStatus(
        job=job.metadata.name,
        epoch=0,
        phase=Phase.WAITING,
        phase_reason="the syncer has left no status",
        syncer_step=0,
        merged_tokens=0.0,
        budget_tokens=job.spec.training.tokens,
        eval_loss=None,
        evaluations=(),
        goodput=None,
        merged=None,
        elapsed_seconds=0.0,
        learners=(),
        tokens_per_second=0.0,
    )


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
