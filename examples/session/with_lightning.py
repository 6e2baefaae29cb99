"""Lightning: a callback enters the session and tells it of each batch. In several processes it shards the model."""

import os
from contextlib import ExitStack
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from toy import Batch, Later, Model, held_out_loss

import diloco


class Fit(LightningModule):
    def __init__(self, model: Model, learning_rate: float) -> None:
        super().__init__()
        self.model, self.learning_rate = model, learning_rate

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Batch, _: int) -> Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)


class InJob(Callback):
    """Once fitting starts, the model is sharded, and the optimizer has what it trains."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.session: diloco.Session

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.session = diloco.session(module.model, trainer.optimizers, evaluate=held_out_loss)
        self.stack.enter_context(self.session)

    def on_train_batch_end(self, trainer: Trainer, _: LightningModule, outputs: Any, *_more: Any) -> None:
        trainer.should_stop = not self.session.step(outputs["loss"])


def train(model: Model, learning_rate: float) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    sharded = ModelParallelStrategy(data_parallel_size=processes, tensor_parallel_size=1)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with ExitStack() as stack:
        in_job = InJob(stack)
        trainer = Trainer(
            max_epochs=-1,
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            strategy=sharded if processes > 1 else "auto",
            use_distributed_sampler=False,
            callbacks=[in_job],
            **quiet,
        )
        trainer.fit(Fit(model, learning_rate), Later(lambda: in_job.session))
