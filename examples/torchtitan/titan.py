"""Adds a session to torchtitan's Trainer: diloco merges between two of its steps."""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch import nn
from torchtitan.config import ConfigManager
from torchtitan.trainer import Trainer

import diloco


class InJob(Trainer):
    """Trains inside of a session until that ends."""

    evaluate: Callable[[nn.Module], float]

    def train(self) -> None:
        (model,) = self.model_parts  # no pipeline: each process has a part of every layer
        self.goes_on = True
        with diloco.session(model, list(self.optimizers), evaluate=self.evaluate) as self.session:
            self.step = self.session.steps
            super().train()

    def batch_generator(self, *arguments: Any) -> Iterator[Any]:
        made_before = self.session.steps * self.gradient_accumulation_steps
        return islice(super().batch_generator(*arguments), made_before, None)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        super().train_step(data_iterator)
        self.goes_on = self.session.step()

    def should_continue_training(self) -> bool:
        return self.goes_on


def make_model(module: str, config: str) -> nn.Module:
    """The model of a configuration: whole, on the CPU. The syncer and every learner build it."""
    job = _config(module, config)
    job.model_spec.model.update_from_config(config=job)
    model: nn.Module = job.model_spec.model.build()
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    return model


def train(_: nn.Module, module: str, config: str, evaluate: str) -> None:
    """The loop: torchtitan builds the same model once more, sharded. ``evaluate``: ``module:function``."""
    trainer = InJob(_config(module, config))
    place, _, function = evaluate.partition(":")
    trainer.evaluate = getattr(import_module(place), function)
    trainer.train()
    trainer.close()


def _config(module: str, config: str) -> Any:
    return ConfigManager().parse_args(["--module", module, "--config", config])
