"""What wrong learners cost in loss, with members clipped as the product does and without.

M learners train a small network on source text in one process (AdamW, H = 24, tau = 2, 12 fragments); every fragment is
merged by the product's `merge_fragment`: RDA in BF16, weights by tokens, no outer momentum. Wrong learners train as the
others do and send something else:

- sign: their outer gradient turned round;
- scale, tiny: a multiple of it;
- noise, drift: random values of so many times its length, drawn each time or once for each fragment;
- against: the sum of the honest ones turned round, each tensor at so many times their median length. It knows theirs.

Honest learners that differ show what clipping costs: some make three times the steps of others, or half of them with
another batch, or lose their optimizers' state in turn. docs/explanation/quality.md has the table.
"""

import time
from statistics import fmean, median, stdev
from typing import Any

import torch

from support.poison.loop import Case, Outcome, run, shares
from support.report import Ratio, Ratios, command, write_report

BELOW_THE_BOUND = 15.8
"""Times the others' size: just too little to be left out."""

HONEST = (
    Case("all alike"),
    Case("one of three times the steps", paces=(1, 3, 3, 3)),
    Case("three of three times the steps", paces=(1, 1, 1, 3)),
    Case("batches of 8, 16, 32, 64", batches=(8, 16, 32, 64)),
    Case("optimizers restart in turn", restarts_every=50),
)
WRONG = (
    Case("one absent", absent=1),
    Case("sign turned", wrong=1, kind="sign"),
    Case("10 x", wrong=1, kind="scale", factor=10.0),
    Case("1/20", wrong=1, kind="tiny", factor=0.05),
    Case("noise, 12 x", wrong=1, kind="noise", factor=12.0),
    Case("drift, 12 x", wrong=1, kind="drift", factor=12.0),
    Case("against, 15.8 x", wrong=1, kind="against", factor=BELOW_THE_BOUND),
    Case("two of 1/20", wrong=2, kind="tiny", factor=0.05),
    Case("two against, 15.8 x", wrong=2, kind="against", factor=BELOW_THE_BOUND),
)
OF_EIGHT = (
    Case("all alike", members=8),
    Case("against, 15.8 x", members=8, wrong=1, kind="against", factor=BELOW_THE_BOUND),
    Case("two against, 15.8 x", members=8, wrong=2, kind="against", factor=BELOW_THE_BOUND),
    Case("three against, 15.8 x", members=8, wrong=3, kind="against", factor=BELOW_THE_BOUND),
)


def measured(case: Case, seeds: range, steps: int) -> tuple[dict[str, Any], list[Outcome]]:
    """A row of the tables, and the runs with clipping."""
    found = [run(case, seed, steps, clipped=True) for seed in seeds]
    with_clip = [one.loss for one in found]
    without = [
        run(case, seed, steps, clipped=False).loss if one.clipped.total() else one.loss
        for seed, one in zip(seeds, found, strict=True)
    ]
    row = {
        "learners": case.members,
        "case": case.name,
        "loss_without_clip": fmean(without),
        "loss": fmean(with_clip),
        "sd": stdev(with_clip) if len(with_clip) > 1 else 0.0,
        "seeds": len(seeds),
        **shares(found),
    }
    return row, found


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="inner steps (default 400)")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each case (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: two cases of 60 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps, seeds = (60, range(1)) if arguments.quick else (arguments.steps, range(arguments.seeds))
    cases = (HONEST[0], WRONG[1]) if arguments.quick else (*HONEST, *WRONG, *OF_EIGHT)
    began, rows, growth = time.process_time(), [], []
    for case in cases:
        row, outcomes = measured(case, seeds, steps)
        rows.append(row)
        growth += [exponent for one in outcomes for exponent in one.growth]
        print(row, flush=True)
    by_name = {(row["learners"], row["case"]): row for row in rows}
    ratios: Ratios = {}
    for case in cases:
        row, base = by_name[case.members, case.name], by_name[case.members, "all alike"]
        name = f"{case.members}_" + case.name.replace(" ", "_").replace(",", "")
        if case in HONEST:
            ratios[name] = Ratio(
                row["loss"] / row["loss_without_clip"], "its loss without the clip", less_is_better=True
            )
        elif case.wrong:
            ratios[name] = Ratio(row["loss"] / base["loss"], "its loss with honest learners", less_is_better=True)
    figures = {
        "steps": steps,
        "processor_seconds": time.process_time() - began,
        "growth_exponent": median(growth) if growth else None,
        "runs": rows,
    }
    write_report(arguments.json, "poison", ratios, figures)


if __name__ == "__main__":
    main()
