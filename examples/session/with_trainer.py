"""The `Trainer` of transformers: a callback enters the session and tells it of its steps.

In several processes it shards the model (FSDP2) on GPUs. On a CPU accelerate has no FSDP, and each has the whole model.
"""

import os
from contextlib import ExitStack
from typing import Any

import torch
from toy import Later, Model, held_out_loss
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import diloco


class InJob(TrainerCallback):
    """Once training begins, the model is sharded, and the optimizer has what it trains."""

    def __init__(self, model: Model, stack: ExitStack) -> None:
        self.model, self.stack = model, stack
        self.session: diloco.Session

    def on_train_begin(self, *_: Any, optimizer: torch.optim.Optimizer, **_more: Any) -> None:
        self.session = diloco.session(self.model, optimizer, evaluate=held_out_loss)
        self.stack.enter_context(self.session)

    def on_step_end(self, _a: TrainingArguments, _s: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = not self.session.step()


class Fit(Trainer):
    def __init__(self, in_job: InJob, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, callbacks=[in_job], **named)
        self.in_job = in_job

    def get_train_dataloader(self) -> Later:
        return Later(lambda: self.in_job.session)


def train(model: Model, learning_rate: float) -> None:
    processes, gpu = int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.is_available()
    arguments = TrainingArguments(
        per_device_train_batch_size=16 // processes,
        learning_rate=learning_rate,
        max_steps=10**9,  # the session says when it is over
        lr_scheduler_type="constant",
        fsdp=processes > 1 and gpu,
        use_cpu=not gpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    with ExitStack() as stack:
        Fit(InJob(model, stack), model, arguments).train()
