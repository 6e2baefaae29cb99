"""Steps whose numbers are late: the device decides whether one is skipped. Here the CPU acts such a device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from diloco.learner.training.fragment_trainer import StepResult
from diloco.learner.training.steps import TrainingDivergedError
from diloco.learner.training.trainer import InnerTrainer
from testbed.fake_world import HOST_READ, Counted
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

_READS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "nonzero"}
NAN = float("nan")


class HostReads(TorchFunctionMode):
    """Finds calls for the values of tensors that a step computes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if (name := getattr(func, "__name__", "")) in _READS:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def late_trainer(folder: Path, *, late: bool = True, **training: Any) -> InnerTrainer:
    plain = {
        "tokens": 100_000,
        "sequenceLength": 16,
        "batchSize": 4,
        "optimizer": {"learningRate": 3e-3, "warmupSteps": 4},
    }
    trainer = trainer_of(small_job(write_text(folder), training=plain | training))
    trainer._inner._late = late
    return trainer


def begun(trainer: InnerTrainer) -> Any:
    late = trainer.begin(0.0)
    assert not isinstance(late, StepResult)
    return late


def receive(trainer: InnerTrainer, fragment: int, value: float) -> None:
    trainer.apply(fragment, 1, trainer.buffer(fragment).fill_(value))


@pytest.mark.parametrize(
    "changes", [{}, {"microBatchSize": 1}, {"precision": "BF16"}, {"optimizer": {"type": "Muon"}}], ids=str
)
def test_the_host_reads_nothing_of_a_step_until_it_is_settled(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = late_trainer(tmp_path, **changes)
    trainer.step(0.0)
    with Counted() as counted, HostReads() as reads:
        late = begun(trainer)
        assert (reads.found, counted.calls[HOST_READ]) == ([], 0)
        late()
        assert reads.found


def test_numbers_that_are_not_late_are_read_before_the_optimizer(tmp_path: Path) -> None:
    trainer = late_trainer(tmp_path, late=False)
    with HostReads() as reads:
        trainer.begin(0.0)
    assert reads.found


@pytest.mark.parametrize("optimizer", ["AdamW", "Muon"])
def test_what_the_device_skips_is_what_the_host_would_skip_to_the_bit(tmp_path: Path, optimizer: str) -> None:
    seen = []
    for late in (False, True):
        trainer = late_trainer(tmp_path, late=late, optimizer={"type": optimizer, "warmupSteps": 4})
        results = [trainer.step(0.0)]
        for value in (NAN, 0.01, float("inf"), 0.02):
            receive(trainer, 0, value)
            results += [trainer.step(0.0), trainer.step(0.0)]
        state = trainer.state()
        counts = (state.optimizer_steps, state.steps, state.tokens, state.data_position)
        numbers = str([(one.loss, one.grad_norm, one.learning_rate, one.skipped, one.tokens) for one in results])
        parameters = {name: one.detach() for name, one in trainer._module.named_parameters()}
        seen.append((dict(state.tensors) | parameters, counts, numbers))
    (tensors, counts, numbers), (other_tensors, other_counts, other_numbers) = seen
    assert counts == other_counts == (5, 5, 5 * 64, 36)
    assert numbers == other_numbers
    assert tensors.keys() == other_tensors.keys()
    assert all(torch.equal(one, other_tensors[name]) for name, one in tensors.items())


def test_ten_steps_that_the_device_skips_in_a_row_end_the_training(tmp_path: Path) -> None:
    trainer = late_trainer(tmp_path)
    trainer.step(0.0)
    receive(trainer, 0, NAN)
    for _ in range(9):
        assert trainer.step(0.0).skipped
    with pytest.raises(TrainingDivergedError, match="not finite in 10 steps in a row"):
        trainer.step(0.0)
    assert (trainer.steps, trainer.state().optimizer_steps) == (1, 1)


@pytest.mark.parametrize(("value", "made"), [(0.01, 2), (NAN, 1)])
def test_a_step_counts_in_what_is_copied_out_during_it_not_in_what_comes(
    tmp_path: Path, value: float, made: int
) -> None:
    trainer = late_trainer(tmp_path)
    trainer.step(0.0)
    receive(trainer, 0, value)
    late = begun(trainer)
    assert (trainer.steps, trainer.tokens) == (1, 64)
    assert (trainer.capture(2).steps, trainer.capture(2).tokens, trainer.fragment_steps(0)) == (2, 128, 1)
    receive(trainer, 1, 0.02)
    assert trainer.fragment_steps(1) == 0
    late()
    assert [trainer.fragment_steps(fragment) for fragment in range(3)] == [made - 1, 0, made]
    assert [trainer.fragment_tokens(fragment) for fragment in range(3)] == [64 * (made - 1), 0, 64 * made]
    assert (trainer.steps, trainer.tokens, trainer.capture(2).steps) == (made, 64 * made, made)
