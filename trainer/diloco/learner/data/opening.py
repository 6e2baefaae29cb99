"""Opens a learner's data as the manifest describes it: source, shard and holdout, checked before the first step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco.learner.data.corpus import open_text
from diloco.learner.data.holdout import Holdout, check_size, training_tokens
from diloco.learner.data.mixture import open_mixture
from diloco.learner.data.sampler import Shard, ShardSampler
from diloco.learner.data.source import DataError, TokenSource
from diloco.learner.data.token_cache import cached_tokens
from diloco.learner.data.tokenfile import open_token_file
from diloco.model.entrypoint import EntrypointError, call_entrypoint, one_line
from diloco.runtime.cache import cache_folder
from diloco.spec import JobSpec
from diloco.spec.training import DataSpec, Sources


@dataclass(frozen=True, slots=True)
class LearnerData:
    """Everything a trainer needs of the data."""

    source: TokenSource
    field: str
    """The manifest field that names the data, for messages."""
    sampler: ShardSampler
    holdout: Holdout


def open_data(
    job: JobSpec, learner: str, source: TokenSource | None = None, *, batch_size: int | None = None
) -> LearnerData:
    """The shard of ``learner`` (an id of the job) and the holdout, which is the same for all learners.

    ``source``: the job's tokens, if the caller has opened them; several learners of one process may share them.
    ``batch_size``: sequences in an inner step; default: ``batch_size_of``.

    Raises:
        DataError: the data is missing, empty, too short or of the wrong kind; one line that names the field.
        ValueError: the job has no such learner.
    """
    source = open_source(job.data) if source is None else source
    field = field_of(job.data)
    shard = Shard(
        index=job.learner_ids.index(learner),
        count=len(job.learner_ids),
        batch_size=batch_size or batch_size_of(job, learner),
        sequence_length=job.training.sequence_length,
        seed=job.training.seed,
    )
    check_size(len(source), shard, job.data.holdout_fraction, field)
    train = training_tokens(len(source), job.data.holdout_fraction)
    return LearnerData(
        source=source,
        field=field,
        sampler=ShardSampler(source, train, shard),
        holdout=Holdout(source, train, shard, job.training.evaluation.sequences),
    )


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
