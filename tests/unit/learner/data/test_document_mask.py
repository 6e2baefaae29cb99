"""Documents that share a sequence are trained on, and evaluated, as if each was there alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diloco.learner.data import DataError, make_token_file
from diloco.learner.data.opening import open_data, open_task
from diloco.learner.data.task import JobTask, LanguageModel
from diloco.learner.data.tokenfile import write_token_file
from diloco.learner.training.gradients import backpropagate
from diloco.model import ModelError
from diloco.model.build import build_model
from diloco.model.fragments import trained_parameters
from diloco.model.logits import NOT_COUNTED
from diloco.spec import JobSpec
from diloco.spec.training import TextData
from tests.support.small_job import small_job
from tests.support.small_learner import trainer_of

CPU = torch.device("cpu")
END = 256


class Row:
    """A source of these tokens."""

    vocabulary_size = 257

    def __init__(self, *tokens: int) -> None:
        self._tokens = np.array(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]


def masked_job(data: Mapping[str, Any], **changes: Any) -> JobSpec:
    builtin = {"builtin": {"preset": "pico", "vocabularySize": 257}}
    return small_job(**{"model": builtin, "data": {"holdoutFraction": 0.1, "documentMask": True, **data}} | changes)


@pytest.fixture
def documents(tmp_path: Path) -> dict[str, Any]:
    """60 documents of 2 to 25 letters."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text("ab" * (1 + number * 7 % 13))
    return {"text": {"path": str(folder)}}


def test_positions_begin_in_each_document_and_no_target_follows_an_end() -> None:
    source = Row(5, 6, END, 7, END, END, 8, 9, 1, 2, 3, END, 4)
    batch = LanguageModel(source, 6, "data", END).batch(np.arange(2))
    assert batch["inputs"].tolist() == [[5, 6, END, 7, END, END], [8, 9, 1, 2, 3, END]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]
    none = NOT_COUNTED
    assert batch["targets"].tolist() == [[6, END, none, END, none, none], [9, 1, 2, 3, END, none]]


def mean_and_gradients(job: JobSpec, task: JobTask, numbers: list[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    module = build_model(job)
    loss, _, count = backpropagate(module, task, np.array(numbers), job.training)
    return loss, count, [one.grad for one in trained_parameters(module).values() if one.grad is not None]


def alone(*documents: tuple[int, ...]) -> tuple[float, int, list[Tensor]]:
    """The mean loss over all tokens of the documents but each one's first, each in a row of its own."""
    job = small_job(model={"builtin": {"preset": "pico", "vocabularySize": 257}})
    module = build_model(job)
    count = sum(len(one) - 1 for one in documents)
    total = torch.zeros(())
    for one in documents:
        row = torch.tensor(one)
        total = total + torch.nn.functional.cross_entropy(module(row[None, :-1])[0], row[1:], reduction="sum")
    (total / count).backward()  # type: ignore[no-untyped-call]  # torch's own
    grads = [one.grad for one in trained_parameters(module).values() if one.grad is not None]
    return float(total.detach()) / count, count, grads


@pytest.mark.parametrize("micro", [None, 1])
def test_the_loss_is_the_mean_over_the_documents_each_alone(micro: int | None) -> None:
    """The last sequence has no target that counts."""
    source = Row(5, 6, END, 7, 8, END, 1, 2, 3, END, 4, END, *[END] * 6, 9)
    job = small_job(
        model={"builtin": {"preset": "pico", "vocabularySize": 257}},
        training={
            "tokens": 1000,
            "sequenceLength": 6,
            "batchSize": 3,
            "microBatchSize": micro,
            "optimizer": {"clipNorm": 0},
        },
    )
    loss, count, grads = mean_and_gradients(job, LanguageModel(source, 6, "data", END), [0, 1, 2])
    wanted, counted, wanted_grads = alone((5, 6, END), (7, 8, END), (1, 2, 3, END), (4, END))
    assert count == counted == 8
    torch.testing.assert_close(float(loss), wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(grads, wanted_grads, rtol=1e-4, atol=1e-6)


def test_a_batch_of_ends_alone_still_has_a_mean() -> None:
    task = LanguageModel(Row(*[END] * 9), 4, "data", END)
    assert (task.batch(np.arange(2))["targets"] != NOT_COUNTED).sum() == 1


@pytest.mark.parametrize("precision", ["F32", "BF16"])
def test_a_job_trains_and_evaluates_with_a_mask(documents: dict[str, Any], precision: str) -> None:
    training = {
        "tokens": 10_000,
        "sequenceLength": 16,
        "batchSize": 4,
        "microBatchSize": 2,
        "precision": precision,
        "optimizer": {"learningRate": 3e-3, "warmupSteps": 0},
        "evaluation": {"sequences": 2},
    }
    trainer = trainer_of(masked_job(documents, training=training))
    first = trainer.evaluate()
    results = [trainer.step(0.0) for _ in range(3)]
    assert results[-1].loss < results[0].loss
    assert results[0].tokens == 64
    for fragment in range(len(trainer.versions)):
        trainer.apply(fragment, 1, trainer.capture(fragment)._values)
    assert trainer.evaluate() < first


def test_each_kind_of_data_says_which_token_ends_a_document(documents: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "made.tokens"
    make_token_file(TextData.model_validate(documents["text"]), path)
    tokens = {"tokens": {"path": str(path)}}
    mixture = {"mixture": [{"weight": 2, **tokens}, {"weight": 1, **documents}]}
    source = {"entrypoint": "tests.support.entrypoints:counting_source", "arguments": {"count": 3000}}
    for data in (documents, tokens, mixture, source):
        task = open_data(masked_job(data), "here/cpu/0").task
        positions = task.batch(np.arange(30))["positions"]
        assert (positions[:, 1:] == 0).any()


@pytest.mark.parametrize("end", ["None", "257", "-1", "'a'"])
def test_a_source_without_an_end_of_document_is_one_line(end: str) -> None:
    arguments = {"count": 3000} | ({} if end == "None" else {"end": eval(end)})
    name = "numbers_without_end" if end == "None" else "counting_source"
    data = {"entrypoint": f"tests.support.entrypoints:{name}", "arguments": arguments}
    with pytest.raises(DataError) as raised:
        open_task(masked_job(data))
    assert str(raised.value) == (
        f"data.documentMask: end_of_document of data.entrypoint is {end}; use a source with a token id of 0 to 256 "
        "there (`diloco tokens` writes it into its files), or leave documentMask out"
    )


def test_parts_that_end_documents_otherwise_are_no_mixture(tmp_path: Path, documents: dict[str, Any]) -> None:
    path = tmp_path / "other.tokens"
    write_token_file(path, [np.arange(300) % 257], 257, "bytes", 0)
    mixture = [{"weight": 1, **documents}, {"weight": 1, "tokens": {"path": str(path)}}]
    with pytest.raises(DataError, match=r"^data.mixture\[1\]: .* bytes \(end of document: 0\), and data.mix"):
        open_task(masked_job({"mixture": mixture}))


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("tests.support.model_kinds:plain", "forward(tokens, position_ids=...) raised TypeError: "),
        ("tests.support.model_parts:DeafToPositions", "the model's tokens see the document before theirs, though "),
    ],
)
def test_a_model_that_does_not_keep_documents_apart_is_refused(
    documents: dict[str, Any], factory: str, told: str
) -> None:
    with pytest.raises(ModelError) as raised:
        trainer_of(masked_job(documents, model={"entrypoint": factory}))
    assert str(raised.value).startswith(f"data.documentMask: {told}")
    assert str(raised.value).endswith("; use another model, or leave documentMask out")
    assert "\n" not in str(raised.value)
