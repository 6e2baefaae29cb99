"""Which runs of the quality benchmark are due, in order of importance, given the results that are there.

Pure: results in, settings out. Rates are found by a walk: from a start, one part at a time a step up and a step down
its ladder, to the best of them, until nothing gains a thousandth. So no best lies at an edge of what was tried, but for
momentum 0 and a ladder's end.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.quality.runs import Setting
from support.quality.variants import CHOICE_SEED, CHOSEN, LADDERS, VARIANTS, Rates, Stage

WORTH = 0.001
"""What a step must gain to be taken, as a share of the loss: less is far below what seeds differ by."""
Results = Mapping[Setting, Mapping[str, Any]]


def neighbours(middle: Rates, parts: Sequence[str]) -> list[Rates]:
    """``middle`` and what differs from it by one step on the ladder of one of ``parts``."""
    found = [middle]
    for part in parts:
        ladder = LADDERS[part]
        at = ladder.index(getattr(middle, part))
        found += [
            dataclasses.replace(middle, **{part: ladder[other]})
            for other in (at - 1, at + 1)
            if 0 <= other < len(ladder)
        ]
    return found


def walk(start: Rates, parts: Sequence[str], losses: Mapping[Rates, float]) -> tuple[Rates | None, list[Rates]]:
    """The best rates, or None and those that are to be tried first.

    ``losses``: of the rates that were tried. A loss that is not finite counts as the worst.
    """
    middle = start
    while True:
        around = neighbours(middle, parts)
        if missing := [rates for rates in around if rates not in losses]:
            return None, missing
        best = min(around, key=lambda rates: (not losses[rates] < float("inf"), losses[rates]))
        if best == middle or losses[best] > (1 - WORTH) * losses[middle]:
            return middle, []
        middle = best


def tried(results: Results, workload: str, steps: int, variant: str) -> dict[Rates, float]:
    """Losses with the seed that is used to choose rates."""
    return {
        setting.rates: float(result["loss"])
        for setting, result in results.items()
        if (setting.workload, setting.steps, setting.variant, setting.seed) == (workload, steps, variant, CHOICE_SEED)
    }


class Choices:
    """The rates of every variant at every budget, as far as results determine them."""

    def __init__(self, stages: Sequence[Stage], results: Results) -> None:
        self._results = results
        self._searched = {(stage.workload, stage.steps, variant) for stage in stages for variant in _searched(stage)}
        self._budgets = sorted({(stage.workload, stage.steps) for stage in stages})

    def rates(self, workload: str, steps: int, variant: str) -> tuple[Rates | None, list[Setting]]:
        """The rates, an experiment's choice before all others; or None, and the runs needed to find them."""
        name = VARIANTS[variant].rates_of or variant
        if fixed := CHOSEN.get((workload, steps, variant), CHOSEN.get((workload, steps, name))):
            return fixed, []
        what = VARIANTS[name]
        start, due = self._start(workload, steps, name)
        if (workload, steps, name) not in self._searched or start is None:
            return start, due
        losses = tried(self._results, workload, steps, name)
        best, missing = walk(start, what.parts, losses)
        return best, [Setting(name, workload, steps, CHOICE_SEED, rates) for rates in missing]

    def _start(self, workload: str, steps: int, name: str) -> tuple[Rates | None, list[Setting]]:
        smaller = [other for load, other in self._budgets if load == workload and other < steps]
        if smaller:
            return self.rates(workload, smaller[-1], name)
        return VARIANTS[name].start, []


def _searched(stage: Stage) -> tuple[str, ...]:
    if stage.searched is not None:
        return stage.searched
    return tuple(dict.fromkeys(VARIANTS[variant].rates_of or variant for variant in stage.variants))


def due(stages: Sequence[Stage], planned: Sequence[Stage], results: Results) -> list[Setting]:
    """The next runs of ``stages``, most important first, without those that have a result; empty at the end.

    Runs that depend on an unfinished search are not included yet. ``planned``: all stages, which say what is searched.
    """
    return list(dict.fromkeys(setting for setting in _wanted(stages, planned, results) if setting not in results))


def _wanted(stages: Sequence[Stage], planned: Sequence[Stage], results: Results) -> Iterator[Setting]:
    choices = Choices(planned, results)
    for stage in stages:
        chosen = {variant: choices.rates(stage.workload, stage.steps, variant) for variant in stage.variants}
        for _, missing in chosen.values():
            yield from missing
        for seed in range(stage.seeds):
            for variant, (rates, _) in chosen.items():
                if rates is not None and VARIANTS[variant].mean_of is None:
                    yield Setting(variant, stage.workload, stage.steps, seed, rates)
