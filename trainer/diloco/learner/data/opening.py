"""Opens a learner's data as the manifest describes it: source, sampler and holdout, checked before the first step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diloco.learner.data.holdout import Holdout, check_size, training_sequences
from diloco.learner.data.mixture import open_mixture
from diloco.learner.data.own_task import own_task
from diloco.learner.data.sampler import DealtSampler, Hand, Sampling
from diloco.learner.data.source import DataError, TokenSource, end_of_document
from diloco.learner.data.task import JobTask, LanguageModel
from diloco.learner.data.text import open_text
from diloco.learner.data.token_cache import cached_tokens
from diloco.learner.data.tokenfile import open_token_file
from diloco.model.entrypoint import EntrypointError, call_entrypoint, one_line
from diloco.runtime.cache import cache_folder
from diloco.spec import JobSpec
from diloco.spec.training import DataSpec, Sources


@dataclass(frozen=True, slots=True)
class LearnerData:
    """Everything a trainer needs of the data."""

    task: JobTask
    sampler: DealtSampler
    holdout: Holdout


def open_data(
    job: JobSpec,
    learner: str,
    task: JobTask | None = None,
    *,
    batch_size: int | None = None,
    hand: Hand | None = None,
) -> LearnerData:
    """What ``learner`` (an id of the job) is dealt, and the holdout, which all learners have.

    ``task``: the job's, if the caller has opened it; several learners of one process may share it.
    ``batch_size``: sequences in an inner step; default: ``batch_size_of``.
    ``hand``: what the syncer deals; None: it takes all.

    Raises:
        DataError: the data is missing, empty, too short or of the wrong kind; one line that names the field.
        ValueError: the job has no such learner.
    """
    task = open_task(job) if task is None else task
    sampling = Sampling(
        batch_size=batch_size or batch_size_of(job, learner),
        seed=job.training.seed,
    )
    check_size(task, sampling.batch_size, job.data.holdout_fraction)
    train = training_sequences(len(task), job.data.holdout_fraction)
    each = max(1, sampling.batch_size // job.pool_of(learner).ranks)  # of a process
    at_once = min(each, job.training.micro_batch_size or each)
    holdout = Holdout(train, len(task), at_once, job.training.evaluation.sequences)
    return LearnerData(task, DealtSampler(train, sampling, hand), holdout)


def open_task(job: JobSpec, cache: Path | None = None, stopping: Callable[[], bool] = lambda: False) -> JobTask:
    """What the job trains on: the user's task, or a language model over the tokens that the manifest names.

    ``cache`` and ``stopping`` as in ``open_source``, which also says what it raises.
    """
    if job.loop is not None:
        raise DataError("loop: the job's data and loss are in a loop of its own, which only 'diloco run' executes")
    if job.task is not None:
        return own_task(job.task)
    source, field = open_source(job.data, cache, stopping), field_of(job.data)
    end = _end_of_document(source, field) if job.data.document_mask else None
    return LanguageModel(source, job.training.sequence_length, field, end)


def open_source(data: DataSpec, cache: Path | None = None, stopping: Callable[[], bool] = lambda: False) -> TokenSource:
    """The tokens that the manifest names.

    ``cache``: a folder for the tokens of documents, unless ``DILOCO_CACHE`` names one. Default: the user's.

    Raises:
        DataError: they are missing, empty or of the wrong kind; one line that names the field.
        DataStoppedError: ``stopping`` became true before documents were tokenized.
    """

    def opened(part: Sources) -> TokenSource:
        return _open_one(part, cache_folder(cache), stopping)

    if data.mixture is not None:
        return open_mixture(data.mixture, data.holdout_fraction, opened)
    if data.entrypoint is not None:
        return _from_entrypoint(data.entrypoint, data)
    return opened(data)


def _open_one(data: Sources, cache: Path, stopping: Callable[[], bool]) -> TokenSource:
    if data.text is not None:
        return open_text(data.text)
    if data.documents is not None:
        return cached_tokens(data.documents, cache, "data.documents", stopping)
    assert data.tokens is not None, "exactly one is given"
    try:
        return open_token_file(Path(data.tokens.path))
    except DataError as error:
        raise DataError(f"data.tokens.path: {error}") from error


def field_of(data: DataSpec) -> str:
    """The manifest field that names the data."""
    if data.text is not None:
        return "data.text.path" if data.text.path else "data.text"
    given = (name for name in ("tokens", "documents", "mixture", "entrypoint") if getattr(data, name) is not None)
    kind = next(given)
    return f"data.{kind}.path" if kind in ("tokens", "documents") else f"data.{kind}"


def _end_of_document(source: TokenSource, field: str) -> int:
    end, most = end_of_document(source), source.vocabulary_size - 1
    if isinstance(end, int | np.integer) and 0 <= end <= most:
        return int(end)
    raise DataError(
        f"data.documentMask: end_of_document of {field} is {end!r}; use a source with a token id of 0 to {most} there "
        "(`diloco tokens` writes it into its files), or leave documentMask out"
    )


def batch_size_of(job: JobSpec, learner: str) -> int:
    """Sequences in one inner step of ``learner``: its pool's setting, or else the job's."""
    return job.pool_of(learner).batch_of(job.training)


def _from_entrypoint(entrypoint: str, data: DataSpec) -> TokenSource:
    field = "data.entrypoint"
    try:
        made = call_entrypoint(entrypoint, data.arguments, field)
    except EntrypointError as error:
        raise DataError(str(error)) from error
    if not isinstance(made, TokenSource):
        raise DataError(
            f"{field}: {entrypoint} returned a {type(made).__name__} without vocabulary_size, __len__ and read"
        )
    try:
        len(made)
    except (Exception, SystemExit) as error:  # a user's source may raise anything: show it to the user
        raise DataError(f"{field}: {entrypoint}: its length raised {one_line(error)}") from error
    return made
