"""What has to hold of every model that is trained: four equalities, to the bit."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, GPT2Config

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.training.exported import exported_loss
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.model.logits import logits_of
from diloco.model.probe import check_documents
from diloco.spec import JobSpec
from diloco.spec.training import DataSpec, HuggingFaceModel, ModelSpec, TextData
from diloco.syncer.disk.exporter import export
from tests.support.model_kinds import HUGGING_FACE, KINDS, hugging_face
from tests.support.model_parts import VOCABULARY
from tests.support.small_job import named_job, small_job, write_text
from tests.support.small_learner import trainer_of

OPTIMIZERS = ("AdamW", "Muon")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def job_of(text: Path, kind: str, optimizer: str = "AdamW", factory: str = "made", **arguments: Any) -> JobSpec:
    return small_job(
        text,
        model={"entrypoint": f"tests.support.model_kinds:{factory}", "arguments": {"kind": kind, **arguments}},
        training={
            "tokens": 10_000,
            "sequenceLength": 8,
            "batchSize": 2,
            "optimizer": {"type": optimizer, "learningRate": 3e-3, "warmupSteps": 2},
            "evaluation": {"sequences": 4},
        },
        sync={"fragments": 2, "interval": 4},
    )


def steps(trainer: InnerTrainer, count: int) -> None:
    for _ in range(count):
        assert not trainer.step(0.0).skipped


def values(trainer: InnerTrainer) -> list[torch.Tensor]:
    """The fragments as they are."""
    fragments = range(len(trainer.versions))
    return [trainer.capture(index)._values.clone() for index in fragments]


def receive(trainer: InnerTrainer, given: list[torch.Tensor], version: int) -> None:
    for index, flat in enumerate(given):
        trainer.apply(index, version, flat.clone())


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(job: JobSpec, folder: Path) -> None:
    """The four equalities. ``later`` is a model as the syncer may send it: that of another learner after some steps."""
    first, second = trainer_of(job, 0), trainer_of(job, 1)
    initial = values(first)
    first.evaluate()
    steps(first, 2)
    steps(second, 3)
    assert not equal(values(first), initial)
    later = values(second)

    # Evaluating, in the middle of training, changes nothing of it.
    untouched = trainer_of(job, 0)
    steps(untouched, 2)
    before = values(first)
    first.evaluate()
    assert equal(values(first), before)
    assert equal(values(untouched), before)
    for one in (first, untouched):
        receive(one, later, 1)
    steps(first, 3)
    steps(untouched, 3)
    assert equal(values(first), values(untouched))

    # Learners that have trained apart evaluate what they received alike.
    receive(second, later, 1)
    steps(second, 1)
    loss = first.evaluate()
    assert second.evaluate() == loss

    # The exported model is what was evaluated.
    path = folder / "model.safetensors"
    export(named_job("kinds", job), layout_of(build_model(job), job.sync.fragments), later, 1000, path)
    assert exported_loss(job, path, torch.device("cpu")).means.loss == loss

    # A process that goes on from the checkpoint, and receives the model, trains as the first one would have.
    store = CheckpointStore(folder / "checkpoints", CheckpointIdentity("kinds", "a/b/0", "cut", "optimizer"))
    store.save(LearnerCheckpoint(first.state(), {}, "training"))
    loaded = store.load()
    assert loaded is not None
    resumed = trainer_of(job, 0)
    resumed.load_state(loaded.state)
    for one in (first, resumed):
        receive(one, later, 2)
        steps(one, 3)
    assert equal(values(first), values(resumed))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_trained_evaluated_and_exported_alike(tmp_path: Path, text: Path, kind: str, optimizer: str) -> None:
    check(job_of(text, kind, optimizer), tmp_path)


@pytest.mark.parametrize("optimizer", ["AdamW", pytest.param("Muon", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_a_model_of_transformers_is_trained_and_exported_alike(
    tmp_path: Path, text: Path, kind: str, optimizer: str
) -> None:
    check(job_of(text, kind, optimizer, "hugging_face", **HUGGING_FACE[kind]), tmp_path)


def test_a_model_with_a_document_mask_is_trained_and_exported_alike(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    for number in range(100):
        (documents / f"{number}.txt").write_text("ab" * (1 + number % 5))
    data = DataSpec(text=TextData(path=str(documents)), holdout_fraction=0.1, document_mask=True)
    plain = job_of(documents, "llama", "AdamW", "hugging_face", **HUGGING_FACE["llama"])
    check(plain.model_copy(update={"data": data}), tmp_path)


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_transformers_models_keep_documents_apart_or_are_refused(kind: str) -> None:
    module = hugging_face(kind, **HUGGING_FACE[kind]).eval()
    if kind == "mamba":
        with pytest.raises(ModelError, match=r"^data.documentMask: the model's tokens see the document before theirs"):
            check_documents(module, 8)
        return
    check_documents(module, 8)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        packed, whole = logits_of(module, tokens, positions), logits_of(module, tokens)
        for row, bounds in ((0, (0, 5, 6, 12)), (1, (0, 4, 12))):
            apart = [logits_of(module, tokens[row : row + 1, first:last])[0] for first, last in pairwise(bounds)]
            torch.testing.assert_close(packed[row], torch.cat(apart), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(packed, whole, rtol=1e-2, atol=1e-4)


def test_a_model_that_sees_what_it_is_to_predict_is_refused(text: Path) -> None:
    with pytest.raises(ModelError, match=r"^model: sees the tokens that it is to predict, so its loss would mean noth"):
        trainer_of(job_of(text, "looking ahead"))


@pytest.mark.parametrize("causal", [True, False])
def test_a_new_model_like_bert_is_refused_unless_it_is_causal(text: Path, tmp_path: Path, *, causal: bool) -> None:
    """The parameters of a new one are small, so that it hardly looks."""
    BertConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        is_decoder=causal,
    ).save_pretrained(tmp_path)
    job = job_of(text, "").model_copy(update={"model": ModelSpec(huggingface=HuggingFaceModel(path=str(tmp_path)))})
    if causal:
        trainer_of(job)
    else:
        with pytest.raises(ModelError, match=r"use a causal model \(for BERT and its like, is_decoder: true in config"):
            trainer_of(job)


def test_a_sequence_longer_than_the_models_positions_is_one_line(text: Path, tmp_path: Path) -> None:
    GPT2Config(vocab_size=257, n_positions=7, n_embd=16, n_layer=1, n_head=2).save_pretrained(tmp_path)
    job = job_of(text, "").model_copy(update={"model": ModelSpec(huggingface=HuggingFaceModel(path=str(tmp_path)))})
    with pytest.raises(ModelError, match=r"^training.sequenceLength: 8 is above the model's 7 positions \(max_posit"):
        trainer_of(job)


def test_strided_parameters_are_trained_and_evaluated_as_contiguous_ones(text: Path) -> None:
    odd, plain = (trainer_of(job_of(text, kind)) for kind in ("strided", "contiguous"))
    assert [not one.is_contiguous() for one in odd._module.parameters()].count(True) == 2
    for _ in range(5):
        assert odd.step(0.0).loss == pytest.approx(plain.step(0.0).loss, rel=1e-5)
    for one, other in zip(values(odd), values(plain), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    for trainer in (odd, plain):
        receive(trainer, values(trainer), 1)
    assert odd.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)


def test_an_evaluation_that_raises_leaves_the_model_as_it_was(text: Path) -> None:
    trainer = trainer_of(job_of(text, "part listed three times"))
    trainer.step(0.0)
    before = values(trainer)

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    hook = trainer._module.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        trainer.evaluate()
    hook.remove()
    assert equal(values(trainer), before)
    assert trainer._module.training
