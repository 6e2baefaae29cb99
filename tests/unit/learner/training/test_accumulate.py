from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco.learner.training.accumulate import Batch, accumulate, parts_of
from diloco.learner.training.trainer import InnerTrainer
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of


def gradients(sizes: int | None) -> tuple[list[Tensor], Tensor, Tensor]:
    """Of 32 examples of which every third does not count, in parts of so many."""
    generator = torch.Generator().manual_seed(0)
    batch = {"x": torch.randn(32, 6, generator=generator), "y": torch.randn(32, generator=generator)}
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def loss(part: Batch) -> tuple[Tensor, Tensor]:
        counts = (part["y"] * 10).long() % 3 > 0
        return (functional.mse_loss(module(part["x"])[:, 0], part["y"], reduction="none") * counts).sum(), counts.sum()

    summed, count = accumulate(loss, parts_of(batch, sizes), 32)
    return [one.grad for one in module.parameters() if one.grad is not None], summed, count


@pytest.mark.parametrize("size", [8, 5, 1, 40])
def test_parts_add_up_to_the_gradients_of_the_whole_batch(size: int) -> None:
    parts, summed, count = gradients(size)
    whole, wanted, counted = gradients(None)
    assert 0 < count == counted < 32
    torch.testing.assert_close([*parts, summed], [*whole, wanted], rtol=1e-6, atol=1e-6)


def test_a_count_that_a_task_has_made_on_the_host_goes_to_the_device() -> None:
    module = nn.Linear(6, 1, device="meta")
    batch = {"x": torch.empty(4, 6, device="meta")}
    summed, count = accumulate(lambda part: (module(part["x"]).sum(), torch.tensor(4)), [batch], 4)
    assert {one.device.type for one in (summed, count)} == {"meta"}


def steps(tmp_path: Path, **changes: Any) -> tuple[InnerTrainer, list[int], list[float]]:
    """A trainer after three steps of 32 sequences; sequences in each of its forward passes; losses and norms."""
    training = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 32} | changes
    trainer = trainer_of(small_job(write_text(tmp_path), training=training))
    passes: list[int] = []
    trainer._module.register_forward_pre_hook(lambda _, arguments: passes.append(len(arguments[0])))
    results = [trainer.step(0.0) for _ in range(3)]
    assert [result.tokens for result in results] == [32 * 16] * 3
    return trainer, passes, [value for result in results for value in (result.loss, result.grad_norm)]


def test_4_micro_batches_of_8_train_as_a_batch_of_32(tmp_path: Path) -> None:
    whole, of_whole, wanted = steps(tmp_path)
    parts, of_parts, told = steps(tmp_path, microBatchSize=8)
    assert (of_whole, of_parts) == ([32] * 3, [8] * 12)
    assert told == pytest.approx(wanted, rel=1e-5)
    for one, other in zip(parts._module.parameters(), whole._module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
