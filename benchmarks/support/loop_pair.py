"""A learner's inner loop and a plain torch loop that train in turn, in one process and on one device.

Ours is everything that the loop's thread does from one step to the next: drawing the batch, the step, the report, and,
unless it is left out, for every step a fragment copied out and one swapped in, as with as many fragments as steps in an
interval. What is swapped in is there before, as other threads of a learner receive it. The plain loop reads its batch
from memory, clips, steps and reads the loss.
"""

import copy
import queue
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco.learner.activity import Activity
from diloco.learner.data.opening import open_data
from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.link import Shared
from diloco.learner.exchange.orders import Membership, Orders, Wakeup
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.requests import GradientRequest, OuterGradient, Requests
from diloco.learner.inner_loop import InnerLoop, LoopSettings, LoopWiring
from diloco.learner.training.fragment_trainer import LateResult, StepResult
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.fragments import layout_of
from diloco.model.logits import logits_of
from diloco.spec import JobSpec

HERE = Membership("1", 1)


class PlainLoop:
    """What a user would write, with a copy of ``module``; ``bf16``: autocast, ``compiled``: by torch.compile."""

    def __init__(  # noqa: PLR0913  # each names one thing
        self,
        spec: JobSpec,
        module: nn.Module,
        corpus: Tensor,
        device: torch.device,
        *,
        bf16: bool = False,
        compiled: bool = False,
    ) -> None:
        self._module = copy.deepcopy(module).to(device)
        options = spec.training.optimizer
        self._optimizer = torch.optim.AdamW(
            self._module.parameters(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            fused=True,
        )
        self._clip = options.clip_norm
        self._corpus, self._training, self._device, self._bf16 = corpus, spec.training, device, bf16
        self._loss: Callable[[Tensor], Tensor] = torch.compile(self._loss_of) if compiled else self._loss_of

    def step(self) -> float:
        """One step; returns its loss."""
        length = self._training.sequence_length
        starts = torch.randint(len(self._corpus) - length - 1, (self._training.batch_size,)).tolist()
        rows = torch.stack([self._corpus[start : start + length + 1] for start in starts]).long().to(self._device)
        with torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext():
            loss = self._loss(rows)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        nn.utils.clip_grad_norm_(self._module.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def _loss_of(self, rows: Tensor) -> Tensor:
        logits = logits_of(self._module, rows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


class _PairedTrainer(InnerTrainer):
    """A learner's trainer. Before each block of its steps the plain loop makes one."""

    def receive_model(self, pair: "LoopPair") -> None:
        """Receive the model."""
        self._pair, self._shared = pair, pair.shared
        self._shared.holdings.admitted(HERE, range(pair.fragments))
        for fragment in range(pair.fragments):
            self._shared.holdings.arrived(self._merged(fragment, 0))
        self._arrivals: dict[int, MergedFragment] = {}

    def begin(self, progress: float) -> StepResult | LateResult:
        """What the exchange does, and a step; at the begin of a block the plain loop's before."""
        if self.steps % self._pair.block_steps == 0:
            self._pair.change_over(self._pull, over=self.steps >= self._pair.most_steps)
        if self._pair.exchange:
            count = self._pair.fragments
            self._shared.requests.put(GradientRequest(HERE, self.steps % count, 1 + self.steps // count, 1))
            self._shared.holdings.arrived(self._arrivals.pop(self.steps))
        return super().begin(progress)

    def _pull(self) -> None:
        """Make what arrives in the next block."""
        count = self._pair.fragments
        for step in range(self.steps, self.steps + self._pair.block_steps * self._pair.exchange):
            self._arrivals[step] = self._merged((step + count // 2) % count, 1 + step // count)

    def _merged(self, fragment: int, version: int) -> MergedFragment:
        captured = self.capture(fragment)
        if captured._copied is not None:  # noqa: SLF001  # the model as it is
            captured._copied.synchronize()  # noqa: SLF001
        return MergedFragment(HERE.epoch, fragment, version, captured._values)  # noqa: SLF001


class LoopPair:
    """Trains both, and times each block of steps by ``clock``."""

    def __init__(  # noqa: PLR0913  # each names one thing
        self,
        spec: JobSpec,
        module: nn.Module,
        plain: Callable[[], Any],
        device: torch.device,
        clock: Callable[[], float],
        *,
        block_steps: int = 1,
        exchange: bool = True,
        sends: bool = False,
    ) -> None:
        """``plain`` makes one of its steps. ``exchange``: copy a fragment out and swap one in at every step.

        ``sends``: another thread computes the outer gradient of what is copied out, and frees it.
        """
        self.fragments, self.block_steps, self.exchange = spec.sync.fragments, block_steps, exchange
        self._plain, self._clock, self._sends = plain, clock, sends
        wakeup = Wakeup()
        data = open_data(spec, spec.learner_ids[0])
        self._trainer = _PairedTrainer(spec, module, layout_of(module, self.fragments), data, device)
        self._gradients: queue.SimpleQueue[OuterGradient | None] = queue.SimpleQueue()
        outbox = Outbox(alive_seconds=5.0)
        outbox.wake = outbox.deliver
        if sends:
            outbox.push = self._gradients.put
        self.shared = Shared(
            Orders(wakeup),
            Requests(wakeup, self.fragments, 1),
            Holdings(wakeup, self.fragments),
            outbox,
            feedback=None,
        )
        self._wiring = LoopWiring(self.shared, wakeup, lambda: HERE, lambda: None, lambda: None)
        self.seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        """Of each block."""

    def run(self, most_steps: int, staleness_bound_steps: int) -> None:
        """Until each has made so many steps, a multiple of a block's."""
        self.most_steps, self._since = most_steps, 0.0
        self._trainer.receive_model(self)
        settings = LoopSettings(staleness_bound_steps, 10**9)
        sender = threading.Thread(target=self._send) if self._sends else None
        if sender:
            sender.start()
        InnerLoop(self._trainer, self._wiring, settings, Activity(time.monotonic)).run(self._trainer.begin)
        self._gradients.put(None)
        if sender:
            sender.join()

    def _send(self) -> None:
        while (gradient := self._gradients.get()) is not None:
            _ = gradient.capture.delta

    def change_over(self, pull: Callable[[], None], *, over: bool) -> None:
        """Our block is done; the plain loop makes its own, unless it is over. ``pull`` makes what the next receives."""
        if self._since:
            self.seconds["ours"].append(self._clock() - self._since)
        pull()
        if over:
            self.shared.orders.stop("measured")
        else:
            began = self._clock()
            for _ in range(self.block_steps):
                self._plain()
            self.seconds["plain"].append(self._clock() - began)
        self._since = self._clock()
