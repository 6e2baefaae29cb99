"""Processor time of a learner's inner loop over that of a plain torch loop: same model, batch, optimizer and thread.

Both train in one process, a step of one after a step of the other, so that what else the machine does meets both. Ours
is everything that the loop's thread does from one step to the next: drawing the batch, the step, the report, and for
every step a fragment copied out and one swapped in, as with as many fragments as steps in an interval. The plain loop
reads its batch from memory, clips, steps and reads the loss. Processor time is the process's, median of the pairs.
"""

import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco.learner.activity import Activity
from diloco.learner.data.opening import open_data, open_source
from diloco.learner.inner_loop import InnerLoop, LoopSettings, LoopWiring
from diloco.learner.link.syncer_link import Mailboxes
from diloco.learner.mailboxes.control_outbox import ControlOutbox
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.orders import Orders
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullQueue
from diloco.learner.mailboxes.push_queue import PushQueue
from diloco.learner.mailboxes.requests import GradientRequest, Requests
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.fragment_trainer import StepResult
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec, parse_job
from support.job import alone, manifest
from support.report import Ratio, Ratios, command, paired, write_report

FRAGMENTS = INTERVAL = 24
HERE = Membership("1", 1)
WARM_UP_STEPS = 5
CASES = {"pico": (64, 8, 300), "nano": (128, 16, 150), "mini": (64, 4, 60)}
"""Sequence length, batch size and steps, by the model's preset; nano's and mini's sizes are those of ``stall``."""


class PlainLoop:
    """What a user would write."""

    def __init__(self, spec: JobSpec, corpus: Tensor) -> None:
        self._module = build_model(spec)
        options = spec.training.optimizer
        self._optimizer = torch.optim.AdamW(
            self._module.parameters(),
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            fused=True,
        )
        self._clip = options.clip_norm
        self._corpus, self._training = corpus, spec.training

    def step(self) -> float:
        """One step; returns its loss."""
        length = self._training.sequence_length
        starts = torch.randint(len(self._corpus) - length - 1, (self._training.batch_size,)).tolist()
        rows = torch.stack([self._corpus[start : start + length + 1] for start in starts]).long()
        logits = self._module(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        nn.utils.clip_grad_norm_(self._module.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()


class PairedTrainer(InnerTrainer):
    """A learner's trainer. Before each of its steps the plain loop makes one, between two readings of the clock."""

    def begin(self, boxes: Mailboxes, plain: PlainLoop, most_steps: int) -> None:
        """Receive the model. ``most_steps``: after so many it stops."""
        self._boxes, self._plain, self._most_steps = boxes, plain, most_steps
        self.seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        self._since = time.process_time()
        boxes.holdings.admitted(HERE, range(FRAGMENTS))
        for fragment in range(FRAGMENTS):
            self._arrive(fragment, 0)

    def step(self, progress: float) -> StepResult:
        """A plain step, what a link's threads do, and a step."""
        began = time.process_time()
        self.seconds["ours"].append(began - self._since)
        self._plain.step()
        self.seconds["plain"].append(time.process_time() - began)
        fragment, version = self.steps % FRAGMENTS, 1 + self.steps // FRAGMENTS
        self._boxes.requests.put(GradientRequest(HERE, fragment, version, 1))
        self._arrive((fragment + FRAGMENTS // 2) % FRAGMENTS, version)
        if self.steps >= self._most_steps:
            self._boxes.orders.stop("measured")
        self._since = time.process_time()
        return super().step(progress)

    def _arrive(self, fragment: int, version: int) -> None:
        values = self.capture(fragment)._values  # noqa: SLF001  # the model as it is
        self._boxes.pull_queue.arrived(MergedFragment(HERE, fragment, version, values))


def run_case(preset: str, most_steps: int) -> dict[str, Any]:
    """Seconds of each side, and the steps' ratios."""
    torch.set_num_threads(1)
    length, batch, steps = CASES[preset]
    steps = min(steps, most_steps)
    training = {"tokens": 10**12, "sequenceLength": length, "batchSize": batch}
    job = manifest("overhead", {"here": 1}, training=training, sync={"fragments": FRAGMENTS, "interval": INTERVAL})
    spec = parse_job(json.dumps({**job, "spec": {**job["spec"], "model": {"builtin": {"preset": preset}}}})).spec
    source = open_source(spec.data)
    corpus = torch.from_numpy(np.array(source.read(0, len(source))))
    module, wakeup = build_model(spec), Wakeup()
    trainer = PairedTrainer(
        spec, module, layout_of(module, FRAGMENTS), open_data(spec, spec.learner_ids[0]), torch.device("cpu")
    )
    boxes = Mailboxes(
        Orders(wakeup),
        Requests(wakeup, FRAGMENTS, 1),
        PullQueue(wakeup),
        PushQueue(),
        ControlOutbox(alive_seconds=5.0),
        Holdings(FRAGMENTS),
        feedback=None,
    )
    wiring = LoopWiring(boxes, wakeup, lambda: HERE, lambda: None, lambda: None)
    trainer.begin(boxes, PlainLoop(spec, corpus), WARM_UP_STEPS + steps)
    InnerLoop(trainer, wiring, LoopSettings(10 * INTERVAL, 10**9), Activity(time.monotonic)).run(trainer.step)
    ours, plain = (trainer.seconds[side][WARM_UP_STEPS:] for side in ("ours", "plain"))
    lowest, middle, highest = statistics.quantiles(paired(ours, plain), n=4)
    return {
        "case": preset,
        "steps": len(ours),
        "ours_milliseconds": 1000 * statistics.median(ours),
        "plain_milliseconds": 1000 * statistics.median(plain),
        "ratio": middle,
        "ratio_quartiles": f"{lowest:.3f} to {highest:.3f}",
    }


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of each case at most (300)")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case")
    arguments = parser.parse_args()
    rows = [alone(run_case, preset, arguments.steps) for preset in arguments.case or CASES]
    ratios: Ratios = {
        row["case"]: Ratio(row["ratio"], "a plain loop's processor time for a step", less_is_better=True)
        for row in rows
    }
    write_report(arguments.json, "overhead", ratios, {"asked_for": "at most 1.02", "cases": rows})


if __name__ == "__main__":
    main()
