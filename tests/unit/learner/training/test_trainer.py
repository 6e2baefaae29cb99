import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from diloco.core.dealing.pieces import Piece
from diloco.learner.data import DataError
from diloco.learner.training.capture import Capture
from diloco.learner.training.steps import TrainingDivergedError
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.fragments import layout_of
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

TOKENS = 4 * 16
ADAMW = {"learningRate": 3e-3, "warmupSteps": 4}
MUON = ADAMW | {"type": "Muon"}
BOTH = pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["AdamW", "Muon"])
Make = Callable[..., InnerTrainer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    text = write_text(tmp_path)

    def trainer(learner: int = 0, **changes: Any) -> InnerTrainer:
        return trainer_of(small_job(text, **changes), learner)

    return trainer


def module_of(trainer: InnerTrainer) -> nn.Module:
    return trainer._module


def parameters(trainer: InnerTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module_of(trainer).parameters()]


def receive(trainer: InnerTrainer, fragment: int, version: int, value: float) -> torch.Tensor:
    buffer = trainer.buffer(fragment).fill_(value)
    trainer.apply(fragment, version, buffer)
    return buffer


def training(**changes: Any) -> dict[str, Any]:
    plain = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4}
    return {"training": plain | changes}


def test_a_step_says_what_it_did(make: Make) -> None:
    trainer = make(**training(optimizer=MUON | {"muon": {"learningRate": 0.02}}))
    result = trainer.step(0.0)
    assert (result.tokens, result.skipped) == (TOKENS, False)
    assert result.learning_rate == pytest.approx(3e-3 / 4)
    assert result.loss == pytest.approx(math.log(257), abs=0.4)
    assert result.grad_norm > 0
    assert result.seconds > 0
    assert (trainer.steps, trainer.tokens, trainer.data_position) == (1, TOKENS, 4)


def test_work_on_data_that_others_took_is_dropped(make: Make) -> None:
    trainer = make()
    before, sampler = parameters(trainer), trainer._data.sampler
    sampler.supply = None
    sampler.hand.put(Piece(0, 0, 8))
    trainer.step(0.0)
    assert (trainer.has_data(), trainer.jump()) == (True, False)
    sampler.hand.put(Piece(20, 100, 8))
    assert trainer.jump()
    assert all(map(torch.equal, parameters(trainer), before))
    assert (trainer.staleness, trainer.data_position) == (0, 20)
    trainer.step(0.0)
    capture = trainer.capture(1)
    assert (capture.data_from, capture.data_to, sampler.began) == (20, 24, 100)


def test_the_outer_gradient_is_anchor_minus_parameters(make: Make) -> None:
    trainer = make()
    receive(trainer, 2, 5, 0.25)
    trainer.step(0.0)
    capture = trainer.capture(2)
    assert (capture.fragment, capture.base_version, capture.steps, capture.tokens) == (2, 5, 1, TOKENS)
    receive(trainer, 2, 6, 0.0)  # what is received meanwhile does not change what was captured
    trainer.step(0.0)
    delta = capture.delta
    assert delta.shape == trainer.buffer(2).shape
    assert delta is capture.delta
    # Adam's first step moves every element that has a gradient by the learning rate: small, and not nothing.
    assert 0 < delta.abs().max() < 1e-3


def test_every_fragment_counts_from_when_it_was_received(make: Make) -> None:
    trainer = make()
    trainer.step(0.0)
    trainer.step(0.0)
    receive(trainer, 1, 1, 0.0)
    trainer.step(0.0)
    assert [trainer.fragment_steps(fragment) for fragment in range(6)] == [3, 1, 3, 3, 3, 3]
    assert [trainer.fragment_tokens(fragment) for fragment in (0, 1)] == [3 * TOKENS, TOKENS]
    assert trainer.versions == (0, 1, 0, 0, 0, 0)
    assert trainer.staleness == 3
    assert trainer.capture(1).steps == 1


@BOTH
def test_received_values_overwrite_the_fragment_and_leave_the_moments(make: Make, optimizer: dict[str, Any]) -> None:
    trainer = make(**training(optimizer=optimizer))
    trainer.step(0.0)
    moments = trainer.state().tensors
    receive(trainer, 3, 1, 0.5)
    layout = layout_of(module_of(trainer), 6)
    written = {slot.tensor.name for slot in layout.fragments[3].slots}
    for name, parameter in module_of(trainer).named_parameters():
        assert torch.equal(parameter, torch.full_like(parameter, 0.5)) == (name in written)
    after = trainer.state().tensors
    assert all(torch.equal(after[name], moments[name]) for name in moments)


def test_evaluation_is_of_the_anchors_and_does_not_touch_training(make: Make) -> None:
    trainer, undisturbed = make(), make()
    seen: list[bool] = []
    hook = module_of(trainer).register_forward_hook(lambda module, *_: seen.append(module.training))
    initial = trainer.evaluate()
    hook.remove()
    assert set(seen) == {False}
    for one in (trainer, undisturbed):
        for _ in range(10):
            one.step(0.0)
    before = parameters(trainer)
    assert trainer.evaluate() == initial
    assert all(torch.equal(one, other) for one, other in zip(before, parameters(trainer), strict=True))
    assert module_of(trainer).training
    assert trainer.step(0.0).loss == undisturbed.step(0.0).loss


def test_evaluation_of_what_was_learnt_is_better(make: Make) -> None:
    trainer = make()
    initial = trainer.evaluate()
    for _ in range(30):
        trainer.step(0.0)
    trained = {}
    for fragment in range(6):
        capture = trainer.capture(fragment)
        trained[fragment] = capture._anchor - capture.delta
    replaced = trainer.evaluate(trained)
    assert replaced < 0.8 * initial
    assert trainer.evaluate() == initial
    for fragment, values in trained.items():
        trainer.apply(fragment, 1, values)
    assert trainer.evaluate() == replaced


def test_evaluation_reaches_tied_weights_of_a_users_model(make: Make) -> None:
    trainer = make(
        model={"entrypoint": "tests.support.entrypoints:tiny_model"}, sync={"fragments": 1, "interval": 4, "overlap": 0}
    )
    assert trainer.evaluate({0: torch.zeros(257 * 8 + 8 * 8 + 8)}) == pytest.approx(math.log(257))


@BOTH
def test_a_step_with_an_infinite_gradient_changes_nothing_but_the_data(make: Make, optimizer: dict[str, Any]) -> None:
    trainer = make(**training(optimizer=optimizer))
    trainer.step(0.0)
    receive(trainer, 0, 1, float("inf"))
    before, moments = parameters(trainer), trainer.state().tensors
    result = trainer.step(0.0)
    assert (result.skipped, result.tokens) == (True, 0)
    assert (trainer.steps, trainer.tokens, trainer.data_position) == (1, TOKENS, 8)
    assert all(torch.equal(one, other) for one, other in zip(before, parameters(trainer), strict=True))
    assert all(torch.equal(tensor, moments[name]) for name, tensor in trainer.state().tensors.items())
    assert trainer.state().optimizer_steps == 1
    receive(trainer, 0, 2, 0.01)
    assert not trainer.step(0.0).skipped


@pytest.mark.parametrize(("loss", "norm"), [(1.0, math.inf), (1.0, math.nan), (math.nan, 1.0), (math.inf, 1.0)])
def test_a_step_counts_only_with_a_finite_loss_and_a_finite_gradient(
    make: Make, monkeypatch: pytest.MonkeyPatch, loss: float, norm: float
) -> None:
    trainer = make()
    found = torch.tensor([loss, norm, 1.0])
    monkeypatch.setattr(trainer._inner, "_gradients", lambda *_: found)
    assert trainer.step(0.0).skipped
    assert (trainer.steps, trainer.tokens, trainer.state().optimizer_steps) == (0, 0, 0)


def test_a_step_that_counts_begins_the_count_of_skipped_ones_anew(make: Make) -> None:
    trainer = make()
    for value in (float("nan"), 0.01, float("nan")):
        receive(trainer, 0, 1, value)
        for _ in range(1 if value == 0.01 else 9):
            trainer.step(0.0)
    with pytest.raises(TrainingDivergedError):
        trainer.step(0.0)


@pytest.mark.parametrize(("precision", "dtype"), [("F32", torch.float32), ("BF16", torch.bfloat16)])
def test_a_step_computes_in_the_precision_of_the_job(make: Make, precision: str, dtype: torch.dtype) -> None:
    trainer = make(**training(precision=precision))
    seen: list[torch.dtype] = []
    module_of(trainer).register_forward_hook(lambda _module, _inputs, logits: seen.append(logits.dtype))
    began = time.perf_counter()
    result = trainer.step(0.0)
    assert seen == [dtype]
    assert result.seconds <= time.perf_counter() - began


def test_what_is_still_on_its_way_from_the_device_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    values = torch.ones(3)
    copied: Any = SimpleNamespace(synchronize=lambda: values.fill_(2.0))
    assert Capture(0, 1, 1, 1, torch.full((3,), 5.0), values, copied).delta.tolist() == [3.0] * 3
    monkeypatch.setattr(trainer, "_reader", SimpleNamespace(read=lambda _: (values, copied)))
    assert trainer._now(0).tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("optimizer", "fields"),
    [
        (ADAMW, "training.optimizer.learningRate"),
        (MUON, "training.optimizer.learningRate and training.optimizer.muon.learningRate"),
    ],
    ids=["AdamW", "Muon"],
)
def test_ten_skipped_steps_in_a_row_end_the_training_in_one_line(
    make: Make, optimizer: dict[str, Any], fields: str
) -> None:
    trainer = make(**training(optimizer=optimizer))
    receive(trainer, 0, 1, float("nan"))
    for _ in range(9):
        assert trainer.step(0.0).skipped
    with pytest.raises(TrainingDivergedError, match=f"lower {fields} or check the data") as raised:
        trainer.step(0.0)
    assert "\n" not in str(raised.value)


@BOTH
def test_a_restarted_trainer_goes_on_to_the_bit(make: Make, optimizer: dict[str, Any]) -> None:
    whole, first, second = (make(**training(optimizer=optimizer)) for _ in range(3))
    for _ in range(8):
        whole.step(0.5)
    for _ in range(4):
        first.step(0.5)
    second.load_state(first.state())
    for fragment in range(6):
        capture = first.capture(fragment)
        second.apply(fragment, 7, capture._values)
    assert (second.steps, second.tokens, second.data_position) == (4, 4 * TOKENS, 16)
    assert second.staleness == 0
    for _ in range(4):
        second.step(0.5)
    assert all(torch.equal(one, other) for one, other in zip(parameters(whole), parameters(second), strict=True))


def test_a_trainer_catches_up_with_the_syncer_and_never_goes_back(make: Make) -> None:
    trainer = make()
    trainer.step(0.0)
    before, taken = trainer.tokens, trainer.data_position
    trainer.catch_up(steps=50, data_position=200)
    assert (trainer.steps, trainer.data_position, trainer.staleness) == (50, 200, 1)
    assert (trainer.tokens - before) * taken == (200 - taken) * before  # tokens are counted in whole sequences
    assert trainer.fragment_tokens(0) == before
    tokens = trainer.tokens
    trainer.catch_up(steps=3, data_position=12)
    assert (trainer.steps, trainer.data_position, trainer.tokens) == (50, 200, tokens)
    assert trainer.fragment_steps(0) == 1


def test_clipping_bounds_the_gradient_but_not_what_is_reported(make: Make) -> None:
    optimizer = {"learningRate": 3e-3, "warmupSteps": 0, "clipNorm": 1e-9, "epsilon": 1e-8, "weightDecay": 0}
    clipped = make(**training(optimizer=optimizer))
    before = parameters(clipped)
    assert clipped.step(0.0).grad_norm > 0.1
    moved = max((one - other).abs().max().item() for one, other in zip(before, parameters(clipped), strict=True))
    assert moved < 0.5 * 3e-3  # not Adam's full step: the gradient is small beside epsilon
    free = make(**training(optimizer=optimizer | {"clipNorm": 0}))
    assert free.step(0.0).grad_norm == pytest.approx(make().step(0.0).grad_norm, rel=1e-5)


@BOTH
def test_bf16_trains_too_and_keeps_parameters_in_f32(make: Make, optimizer: dict[str, Any]) -> None:
    trainer = make(**training(precision="BF16", optimizer=optimizer))
    reference = make()
    first = trainer.step(0.0).loss
    assert first == pytest.approx(reference.step(0.0).loss, rel=0.01)
    assert first != make().step(0.0).loss
    for _ in range(20):
        last = trainer.step(0.0).loss
    assert last < 0.9 * first
    assert {parameter.dtype for parameter in module_of(trainer).parameters()} == {torch.float32}


def test_a_users_model_is_trained_by_muon(make: Make) -> None:
    sync = {"fragments": 1, "interval": 4, "overlap": 0}
    trainer = make(model={"entrypoint": "tests.support.entrypoints:tiny_model"}, sync=sync, **training(optimizer=MUON))
    losses = [trainer.step(0.0).loss for _ in range(30)]
    assert losses[-1] < losses[0]
    assert [name for name in trainer.state().tensors if name.startswith("mom")] == ["momentum_buffer.middle.weight"]
    assert trainer.optimizer_identity.startswith("Muon on 1 matrices")


def test_data_with_ids_that_the_model_does_not_know_is_refused() -> None:
    data = {
        "entrypoint": "tests.support.entrypoints:counting_source",
        "arguments": {"count": 5000},
        "holdoutFraction": 0.1,
    }
    job = small_job(data=data, model={"builtin": {"preset": "pico", "vocabularySize": 100}})
    with pytest.raises(
        DataError, match=r"data.entrypoint: has a vocabulary of 257, but the model's is 100; .*vocabularySize"
    ):
        trainer_of(job)
