"""How the allotted time was used, for the report: bars, a table, and what the classes mean. Pure.

Classes have numbers on bars and in the legend, so that the chart can be read in print and without distinguishing
colors.
"""

from diloco.core.account.time_class import TimeClass
from diloco.local.report.history import RunHistory
from diloco.local.report.svg import Part, Whole, stacked_bars
from diloco.local.view.time_classes import WORDS, TimeShares
from diloco.local.view.units import percent_text

_JOB = "the job"
_NOTHING = 1e-9
"""Shares below this are rounding errors of floating-point differences."""


def time_bars(history: RunHistory) -> str:
    """A bar for the job and one for each learner; empty if no time was given."""
    present = _present(history)
    wholes = [Whole(name, _parts(shares, present)) for name, shares in _wholes(history)]
    legend = [(f"{number} {WORDS[one].title}", _style(one)) for number, one in enumerate(present, 1)]
    return stacked_bars(wholes, legend, "how each learner spent its time")


def time_rows(history: RunHistory) -> tuple[list[str], list[list[str]]]:
    """The job's as a table, with a row and the meaning of each class that occurs."""
    return ["%", "class", "meaning"], [
        [f"{100 * history.time.get(one, 0.0):.2f}", f"{number} {WORDS[one].title}", WORDS[one].meaning]
        for number, one in enumerate(_present(history), 1)
    ]


def _wholes(history: RunHistory) -> list[tuple[str, TimeShares]]:
    named = [(_JOB, history.time), *((one.id, one.time) for one in history.learners)]
    return [(name, shares) for name, shares in named if shares]


def _present(history: RunHistory) -> list[TimeClass]:
    return [one for one in TimeClass if any(shares.get(one, 0.0) > _NOTHING for _, shares in _wholes(history))]


def _parts(shares: TimeShares, present: list[TimeClass]) -> list[Part]:
    return [
        Part(
            shares[one],
            _style(one),
            (f"{number}: {percent_text(shares[one])}", str(number)),
            f"{WORDS[one].title} {percent_text(shares[one])}: {WORDS[one].meaning}",
        )
        for number, one in enumerate(present, 1)
        if shares[one] > _NOTHING
    ]


def _style(one: TimeClass) -> str:
    return f"t-{one.value}"
