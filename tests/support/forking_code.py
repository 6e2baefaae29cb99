"""Code of a user's own that forks while a learner sends and receives: data workers, and a data source with a pool."""

import multiprocessing
import os
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import diloco

BATCH = 4
_STEPS_OF_WORKERS = 5
"""New workers are forked after so many."""


class Line(nn.Module):
    """y = a x + b; its output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Linear(32, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


class Points(Dataset[dict[str, Tensor]]):
    """Of the line y = 2 x, by number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        x = torch.tensor([number % 7 / 7])
        return {"x": x, "labels": 2 * x, "number": torch.tensor(number)}


def _joined(model: nn.Module) -> tuple[torch.optim.Optimizer, diloco.Session]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    points = torch.arange(7.0)[:, None] / 7
    session = diloco.session(model, optimizer, evaluate=lambda model: model(points, 2 * points)["loss"])
    return optimizer, session


def train(model: nn.Module, notes: str) -> None:
    """A plain loop. It notes each step and its batch, both counted from 0, in a file of its process in ``notes``."""
    optimizer, session = _joined(model)
    path = Path(notes) / f"{session.learner.replace('/', '.')}.{os.getpid()}"
    with session, path.open("w", buffering=1) as told:
        while True:
            sampler = count(BATCH * session.steps)
            loader = DataLoader(Points(10**9), BATCH, sampler=sampler, num_workers=2)
            for batch in islice(loader, _STEPS_OF_WORKERS):
                number = int(batch.pop("number")[0])
                loss = model(**batch)["loss"]
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                told.write(f"{session.steps} {number // BATCH}\n")
                if not session.step(loss.detach()):
                    return


def train_by_trainer(model: nn.Module) -> None:
    """The ``Trainer`` of transformers, with new workers in each epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415  # the syncer needs none

    optimizer, session = _joined(model)

    class Tells(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the library's
            control.should_training_stop = not session.step()

    arguments = TrainingArguments(
        per_device_train_batch_size=BATCH,
        dataloader_num_workers=2,
        max_steps=10**9,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    data = Points(BATCH * _STEPS_OF_WORKERS)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[Tells()])
    with session:
        trainer.train()


def train_by_lightning(model: nn.Module) -> None:
    """Lightning, with new workers in each epoch, and two batches for each step of the optimizer."""
    from pytorch_lightning import Callback, LightningModule, Trainer  # noqa: PLC0415  # the syncer needs none

    optimizer, session = _joined(model)

    class Fit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            loss: Tensor = self.model(batch["x"], batch["labels"])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    class Tells(Callback):
        def on_train_batch_end(self, trainer: Trainer, _: Any, outputs: Any, *_more: Any) -> None:
            trainer.should_stop = not session.step(outputs["loss"])

    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = Trainer(max_epochs=-1, devices=1, accumulate_grad_batches=2, callbacks=[Tells()], **quiet)
    with session:
        trainer.fit(Fit(), DataLoader(Points(BATCH * _STEPS_OF_WORKERS), BATCH // 2, num_workers=2))


class Forked:
    """A token source, each of whose reads is made by a process that it forks."""

    vocabulary_size = 257

    def __len__(self) -> int:
        return 200_000

    def read(self, start: int, stop: int) -> Any:
        """Numbers."""
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(_numbers, (start, stop))


def _numbers(start: int, stop: int) -> Any:
    return np.arange(start, stop) % 97


def open_forked() -> Forked:
    """What a manifest names."""
    return Forked()
