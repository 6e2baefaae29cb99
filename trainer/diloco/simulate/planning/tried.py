"""What short simulations tell of a planned job: verdict, forecast, remedies and settings that train well."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, log10

from diloco.plan.changes import FEWEST_INTERVALS
from diloco.plan.needs import Needs, needs
from diloco.plan.plan import Plan
from diloco.plan.verdict import Fit, judge
from diloco.simulate.planning.advice import Advice, advice, not_measured
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.forecast import Forecast, forecast_of
from diloco.simulate.planning.remedies import SHORTEST_STEP_SECONDS, Remedy, remedies, smallest_step_seconds
from diloco.simulate.planning.trial import FEWEST_LEARNERS, fit_after, fit_of, trial

_BELOW, _ABOVE = 2, 4
"""Step times in the table on either side of the smallest that fits."""


@dataclass(frozen=True, slots=True)
class TriedStepTime:
    """The fit with a certain inner step time."""

    seconds: float
    fit: Fit


@dataclass(frozen=True, slots=True)
class Tried:
    """The results."""

    fit: Fit
    forecast: Forecast | None
    """None: no step time is known, nothing is merged, or the job is too short, or too large to simulate shortly."""
    needs: Needs
    remedies: tuple[Remedy, ...]
    advice: Advice | None
    not_measured: str
    """Why there is no advice, as text, if the job is unlike all that was measured."""
    smallest_step_seconds: float | None = None
    """If no step time was given: the shortest that fits, the same for all learners; None: there is none."""
    step_times: tuple[TriedStepTime, ...] = ()
    short: str = ""
    """Why there is no forecast, as text, if the job has too few intervals."""


def tried(made: Plan) -> Tried:
    """Try a planned job."""
    case, situation = Case.of(made.job, made.world, made.model.numels), made.situation
    if situation.quorum_step_seconds is None:
        smallest = smallest_step_seconds(case)
        return Tried(
            judge(situation, None), None, needs(made, None), (), None, "", smallest, tuple(_step_times(case, smallest))
        )
    found = trial(case) or trial(case, FEWEST_LEARNERS)
    fit = fit_after(case, found)
    forecast = None if found is None or case.short else forecast_of(case, found)
    return Tried(
        fit=fit,
        forecast=forecast,
        needs=needs(made, None) if forecast is None else needs(made, forecast.merges, forecast.bytes),
        remedies=remedies(case, fit),
        advice=advice(case),
        not_measured=not_measured(case),
        short=f"{case.steps} steps a learner are fewer than {FEWEST_INTERVALS} intervals" if case.short else "",
    )


def _step_times(case: Case, smallest: float | None) -> Iterator[TriedStepTime]:
    """Step times of the series 1, 2, 5 around the smallest that fits; none if any fits."""
    if smallest is not None and smallest <= SHORTEST_STEP_SECONDS:
        return
    middle = 1.0 if smallest is None else smallest
    power = floor(log10(middle))
    series = [digit * 10.0**exponent for exponent in range(power - 2, power + 4) for digit in (1, 2, 5)]
    first = next(index for index, seconds in enumerate(series) if seconds >= middle)
    for seconds in series[max(0, first - _BELOW) : first + _ABOVE]:
        yield TriedStepTime(seconds, fit_of(case.with_steps(seconds)))
