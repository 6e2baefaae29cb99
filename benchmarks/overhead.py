"""Processor time of a learner's inner loop over that of a plain torch loop: same model, batch, optimizer and thread.

Both train in one process (`support.loop_pair`), a step of one after a step of the other, so that what else the machine
does meets both. Processor time is the process's, median of the pairs.
"""

import json
import statistics
import time
from typing import Any

import numpy as np
import torch

from diloco.learner.data.opening import open_source
from diloco.model.build import build_model
from diloco.spec import parse_job
from support.job import alone, manifest
from support.loop_pair import LoopPair, PlainLoop
from support.report import Ratio, Ratios, command, paired, write_report

FRAGMENTS = INTERVAL = 24
WARM_UP_STEPS = 5
CASES = {"pico": (64, 8, 300), "nano": (128, 16, 120), "mini": (64, 4, 48)}
"""Sequence length, batch size and steps, by the model's preset; nano's and mini's sizes are those of ``stall``."""


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
    cpu = torch.device("cpu")
    module = build_model(spec)
    pair = LoopPair(spec, module, PlainLoop(spec, module, corpus, cpu).step, cpu, time.process_time)
    pair.run(WARM_UP_STEPS + steps, 10 * INTERVAL)
    ours, plain = (pair.seconds[side][WARM_UP_STEPS:] for side in ("ours", "plain"))
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
