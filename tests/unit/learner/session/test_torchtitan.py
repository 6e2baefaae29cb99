"""`examples/torchtitan`, with what it uses of torchtitan's Trainer (0.3) in a stand-in."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.entrypoints import tiny_model
from tests.support.own_loops import ENOUGH, Stage, loss_of
from tests.support.small_learner import learner_options

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/torchtitan"
SEEN: list[int] = []


class Optimizers:
    """As its container: several, stepped as one."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizers = [torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)]

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.optimizers)


class Trainer:
    """What of it the example calls and overrides."""

    gradient_accumulation_steps = 1

    def __init__(self, _: object) -> None:
        self.model_parts, self.step, self.dataloader = [tiny_model()], 0, count()
        self.optimizers = Optimizers(self.model_parts[0])

    def batch_generator(self, numbers: Iterator[int]) -> Iterator[int]:
        yield from numbers

    def train_step(self, data_iterator: Iterator[int]) -> None:
        SEEN.append(number := next(data_iterator))
        tokens = torch.randint(257, (4, 17), generator=torch.Generator().manual_seed(number))
        loss_of(self.model_parts[0], tokens).backward()  # type: ignore[no-untyped-call]  # torch's own
        for one in self.optimizers:
            one.step()
            one.zero_grad()

    def train(self) -> None:
        data_iterator = self.batch_generator(self.dataloader)
        while self.should_continue_training():
            self.step += 1
            self.train_step(data_iterator)

    def should_continue_training(self) -> bool:
        raise AssertionError("its own limit of steps")

    def close(self) -> None:
        SEEN.append(-1)


class ConfigManager:
    def parse_args(self, given: list[str]) -> object:
        assert given == ["--module", "llama3", "--config", "tiny"]
        model = SimpleNamespace(update_from_config=lambda **_: None, build=made)
        return SimpleNamespace(model_spec=SimpleNamespace(model=model))


def made() -> nn.Module:
    model = tiny_model()
    model.init_weights = lambda **_: None  # type: ignore[assignment]  # as torchtitan's models have it
    return model


def held_out_loss(_: nn.Module) -> float:
    return 0.5


def test_torchtitans_trainer_trains_in_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up: dict[str, list[type]] = {"": [], ".config": [ConfigManager], ".trainer": [Trainer]}
    for name, parts in made_up.items():
        module = ModuleType(f"torchtitan{name}")
        vars(module).update({part.__name__: part for part in parts})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    named = {"module": "llama3", "config": "tiny"}
    spec: dict[str, Any] = {
        "model": {"entrypoint": "titan:make_model", "arguments": named},
        "loop": {"entrypoint": "titan:train", "arguments": named | {"evaluate": f"{__name__}:held_out_loss"}},
    }
    stage = Stage(tmp_path, "plain")
    plain = stage.options.job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    stage.options = learner_options(tmp_path, plain | spec, device="cpu")
    stage.on_begin = lambda trainer: trainer.catch_up(5, 0)
    stage.after_step = lambda trainer: trainer.evaluate() != 0.5 or trainer.steps == 8
    try:
        assert stage.run() == ENOUGH
    finally:
        sys.modules.pop("titan", None)
    assert SEEN == [5, 6, 7, -1]
    assert [one.steps for one in stage.results] == [1, 1, 1]
