"""The random numbers of an inner step depend on the seed and the place in the order, and on nothing else."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diloco.learner.training.trainer import InnerTrainer
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path)


def seeded(text: Path, learner: int = 0, seed: int = 0) -> InnerTrainer:
    spec = small_job(
        text,
        model={"entrypoint": "tests.support.entrypoints:dropping_model"},
        training={"tokens": 10_000, "sequenceLength": 16, "batchSize": 4, "seed": seed},
        sync={"fragments": 1, "interval": 1},
    )
    return trainer_of(spec, learner)


def losses(trainer: InnerTrainer, steps: int, disturbed_by: int = 0) -> list[float]:
    found = []
    for step in range(steps):
        torch.manual_seed(disturbed_by + step)
        found.append(trainer.step(0.0).loss)
    return found


def parameters(trainer: InnerTrainer) -> Tensor:
    return trainer.capture(0)._values


def test_one_seed_trains_alike_whatever_else_draws(text: Path) -> None:
    assert losses(seeded(text), 4) == losses(seeded(text), 4, disturbed_by=100)
    assert losses(seeded(text), 4) != losses(seeded(text, seed=1), 4)


def test_every_step_draws_anew(text: Path) -> None:
    trainer, still = seeded(text), seeded(text)
    first = trainer.step(0.0).loss
    still._data.sampler.seek(8)  # the same model
    still._data.sampler.numbers = lambda *_: seeded(text)._data.sampler.numbers(0, 4)  # type: ignore[method-assign]
    assert still.step(0.0).loss != first  # the same batch at another place


def test_a_restarted_learner_draws_as_it_would_have(text: Path) -> None:
    whole, first, second = seeded(text), seeded(text), seeded(text)
    expected = losses(whole, 6)
    assert losses(first, 3, disturbed_by=50) == expected[:3]
    second.load_state(first.state())
    second.apply(0, 1, parameters(first).clone())
    assert losses(second, 3, disturbed_by=70) == expected[3:]
    assert torch.equal(parameters(second), parameters(whole))


def test_a_step_draws_nothing_from_others(text: Path) -> None:
    trainer = seeded(text)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    trainer.step(0.0)
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
