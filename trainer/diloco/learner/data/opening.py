"""Opens a learner's data as the manifest describes it: source, sampler and holdout, checked before the first step."""

from dataclasses import dataclass
from pathlib import Path

from diloco.learner.data.corpus import standard_library
from diloco.learner.data.holdout import Holdout, check_size, training_tokens
from diloco.learner.data.sampler import DealtSampler, Sampling
from diloco.learner.data.source import DataError, TokenSource
from diloco.learner.data.text import ByteText, find_documents
from diloco.learner.data.tokenfile import open_token_file
from diloco.learner.mailboxes.hand import Hand
from diloco.model.entrypoint import EntrypointError, call_entrypoint, one_line
from diloco.spec import JobSpec
from diloco.spec.training import DataSpec, TextData


@dataclass(frozen=True, slots=True)
class LearnerData:
    """Everything a trainer needs of the data."""

    source: TokenSource
    field: str
    """The manifest field that names the data, for messages."""
    sampler: DealtSampler
    holdout: Holdout


def open_data(
    job: JobSpec,
    learner: str,
    source: TokenSource | None = None,
    *,
    batch_size: int | None = None,
    hand: Hand | None = None,
) -> LearnerData:
    """What ``learner`` (an id of the job) is dealt, and the holdout, which all learners have.

    ``source``: the job's tokens, if the caller has opened them; several learners of one process may share them.
    ``batch_size``: sequences in an inner step; default: ``batch_size_of``.
    ``hand``: what the syncer deals; None: it takes all.

    Raises:
        DataError: the data is missing, empty, too short or of the wrong kind; one line that names the field.
        ValueError: the job has no such learner.
    """
    source = open_source(job.data) if source is None else source
    field = field_of(job.data)
    sampling = Sampling(
        batch_size=batch_size or batch_size_of(job, learner),
        sequence_length=job.training.sequence_length,
        seed=job.training.seed,
    )
    check_size(len(source), sampling, job.data.holdout_fraction, field)
    train = training_tokens(len(source), job.data.holdout_fraction)
    return LearnerData(
        source=source,
        field=field,
        sampler=DealtSampler(source, train, sampling, hand),
        holdout=Holdout(source, train, sampling, job.training.evaluation.sequences),
    )


def open_source(data: DataSpec) -> TokenSource:
    """The tokens that the manifest names.

    Raises:
        DataError: they are missing, empty or of the wrong kind; one line that names the field.
    """
    if data.text is not None:
        return open_text(data.text)
    if data.tokens is not None:
        try:
            return open_token_file(Path(data.tokens.path))
        except DataError as error:
            raise DataError(f"data.tokens.path: {error}") from error
    assert data.entrypoint is not None, "DataSpec holds exactly one of the three"
    return _from_entrypoint(data.entrypoint, data)


def open_text(text: TextData) -> ByteText:
    """Plain files, or the default corpus, as byte tokens.

    Raises:
        DataError: they are missing or empty.
    """
    if text.path is None:
        return ByteText(standard_library())
    return ByteText(find_documents(Path(text.path), text.include, "data.text.path"))


def field_of(data: DataSpec) -> str:
    """The manifest field that names the data."""
    if data.text is not None:
        return "data.text.path" if data.text.path else "data.text"
    return "data.tokens.path" if data.tokens is not None else "data.entrypoint"


def batch_size_of(job: JobSpec, learner: str) -> int:
    """Sequences in one inner step of ``learner``, at most: its pool's setting, or else the job's."""
    return job.pool_of(learner).largest_batch(job.training)


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
