import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diloco.learner.data import DataError
from diloco.learner.data.holdout import Holdout, training_sequences
from diloco.learner.data.mixture import Mixture, training_tokens
from diloco.learner.data.opening import open_data, open_source
from diloco.learner.data.sampler import DealtSampler, Sampling
from diloco.learner.data.task import LanguageModel
from diloco.learner.data.tokenfile import write_token_file
from diloco.spec.training import DataSpec
from tests.support.small_job import small_job, write_text


class Counting:
    """Tokens ``first``, ``first + 1``, ..."""

    vocabulary_size = 100_000

    def __init__(self, first: int, count: int) -> None:
        self._tokens = np.arange(first, first + count)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= len(self)
        return self._tokens[start:stop]


FRACTION = 0.1
SIZES, WEIGHTS = (9000, 1000, 30), (3, 1, 0.5)
FIRST = (0, 10_000, 20_000)


@pytest.fixture
def mixture() -> Mixture:
    return Mixture([Counting(*one) for one in zip(FIRST, SIZES, strict=True)], WEIGHTS, FRACTION)


def parts_of(tokens: np.ndarray) -> np.ndarray:
    """The share of each source."""
    return np.bincount(tokens.ravel() // 10_000, minlength=3) / tokens.size


def task_of(mixture: Mixture, length: int) -> tuple[LanguageModel, int]:
    """A task, and its sequences to train on."""
    task = LanguageModel(mixture, length, "data")
    return task, training_sequences(len(task), FRACTION)


def test_the_shares_of_an_epoch_are_the_weights_to_a_percent(mixture: Mixture) -> None:
    task, train = task_of(mixture, 4)
    tokens = task.batch(DealtSampler(train, Sampling(1, 1)).numbers(0, train))["inputs"].numpy()
    assert parts_of(tokens) == pytest.approx(np.array(WEIGHTS) / sum(WEIGHTS), rel=0.01)


def test_a_stretch_of_an_epoch_is_a_sample_of_the_mixture(mixture: Mixture) -> None:
    task, train = task_of(mixture, 8)
    tokens = task.batch(DealtSampler(train, Sampling(200, 0)).next_numbers())["inputs"].numpy()
    assert parts_of(tokens) == pytest.approx(np.array(WEIGHTS) / 4.5, abs=0.1)


@pytest.mark.parametrize("length", [3, 8, 17, 64])
def test_no_token_of_the_holdout_is_in_a_training_sequence(mixture: Mixture, length: int) -> None:
    task, train = task_of(mixture, length)
    batch = task.batch(np.arange(train))
    trained = set(np.concatenate([batch["inputs"].numpy().ravel(), batch["targets"].numpy().ravel()]).tolist())
    assert not trained & set(mixture.read(training_tokens(len(mixture), FRACTION), len(mixture)).tolist())


def test_an_epoch_has_the_largest_part_once_and_others_evenly_often(mixture: Mixture) -> None:
    train = training_tokens(len(mixture), FRACTION)
    times = np.bincount(mixture.read(0, train), minlength=30_000)
    for first, size, weight in zip(FIRST, SIZES, WEIGHTS, strict=True):
        kept = training_tokens(size, FRACTION)
        found = times[first : first + kept]
        assert found.max() - found.min() <= 1
        assert found.mean() == pytest.approx(9000 / 3 * weight / size, rel=0.01)
        assert not times[first + kept : first + size].any()


def test_no_part_is_evaluated_on_what_it_trains_on(mixture: Mixture) -> None:
    train = training_tokens(len(mixture), FRACTION)
    held = mixture.read(train, len(mixture))
    assert not set(held.tolist()) & set(mixture.read(0, train).tolist())
    assert parts_of(held) == pytest.approx(np.array(WEIGHTS) / 4.5, rel=0.01)
    task, first = task_of(mixture, 4)
    holdout = Holdout(first, len(task), 8, 256)
    evaluated = np.concatenate([task.batch(numbers)["inputs"].numpy() for numbers in holdout.batches()])
    assert parts_of(evaluated) == pytest.approx(np.array(WEIGHTS) / 4.5, abs=0.02)


def test_any_stretch_of_a_mixture_reads_the_same_as_the_whole() -> None:
    mixture = Mixture([Counting(0, 20), Counting(50, 7)], (1, 2), 0.3)
    whole = mixture.read(0, len(mixture)).tolist()
    for start in range(len(whole)):
        for stop in range(start, len(whole) + 1):
            assert mixture.read(start, stop).tolist() == whole[start:stop]


def mixed(*parts: dict[str, Any]) -> DataSpec:
    return DataSpec.model_validate({"mixture": [{"weight": 1, **part} for part in parts]})


def test_a_job_trains_on_the_mixture_that_its_manifest_names(tmp_path: Path) -> None:
    text = {"text": {"path": str(write_text(tmp_path))}}
    write_token_file(tmp_path / "a.tokens", [np.arange(4000) % 257], 257, "bytes", 256)
    tokens = {"tokens": {"path": str(tmp_path / "a.tokens")}}
    data = mixed(text, tokens).model_dump(by_alias=True) | {"holdoutFraction": 0.1}
    opened = open_data(small_job(data=data, model={"builtin": {"preset": "pico", "vocabularySize": 257}}), "here/cpu/0")
    assert (opened.task.field, opened.holdout.sequences) == ("data.mixture", 6)
    assert opened.task.batch(opened.sampler.next_numbers())["inputs"].shape == (4, 16)


def test_a_part_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    write_token_file(tmp_path / "a.tokens", [np.arange(200)], 257, "words")
    write_token_file(tmp_path / "b.tokens", [np.arange(2)], 257, "bytes", 256)
    text = {"text": {"path": str(write_text(tmp_path))}}
    for part, told in (
        (
            {"tokens": {"path": str(tmp_path / "a.tokens")}},
            "data.mixture[1]: has 257 ids of tokenizer words (end of document: None), and data.",
        ),
        ({"tokens": {"path": str(tmp_path / "b.tokens")}}, "data.mixture[1]: has 2 tokens, too few for a holdout of"),
        ({"tokens": {"path": str(tmp_path / "none")}}, f"data.mixture[1].tokens.path: {tmp_path / 'none'}: No such"),
        ({"text": {"path": str(tmp_path / "none")}}, f"data.mixture[1].text.path: {tmp_path / 'none'} does not exist"),
        ({"documents": {"path": str(tmp_path / "none")}}, f"data.mixture[1].documents.path: {tmp_path / 'none'} does"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(told)}"):
            open_source(mixed(text, part), tmp_path / "cache")
