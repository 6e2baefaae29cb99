from collections.abc import Iterable

from diloco.plan.fit.fit import Fit, FitKind
from diloco.plan.fit.steady_verdict import SteadyVerdict

HOLD_SECONDS = 60.0
FITS, THIN, SHORT = FitKind.FITS, FitKind.LINK_TOO_THIN, FitKind.OVERLAP_TOO_SHORT


def after(kinds: Iterable[FitKind], *, every_seconds: float = 10.0) -> list[FitKind | None]:
    """What is reported after each of these verdicts."""
    verdict, told = SteadyVerdict(), []
    for count, kind in enumerate(kinds):
        verdict = verdict.after(Fit(kind, f"reason {count}"), count * every_seconds, HOLD_SECONDS)
        told.append(None if verdict.reported is None else verdict.reported.kind)
    return told


def test_one_that_comes_and_goes_is_not_told() -> None:
    assert set(after([FITS] * 7 + [THIN, THIN, FITS] * 20)) == {None, FITS}


def test_misfits_that_alternate_are_told_as_one() -> None:
    told = after([FITS] * 7 + [THIN, SHORT] * 4)
    assert told[6:13] == [FITS] * 7
    assert told[13] is THIN


def test_its_words_stay_the_same_while_it_is_told() -> None:
    verdict = SteadyVerdict()
    for count in range(20):
        verdict = verdict.after(Fit(THIN, f"used to {count} %"), count * 10.0, HOLD_SECONDS)
    assert verdict.reported is not None
    assert (verdict.reported.reason, verdict.since) == ("used to 6 %", 60.0)


def test_without_step_times_nothing_changes() -> None:
    assert after([FitKind.STEP_TIME_UNKNOWN] * 20) == [None] * 20
    assert after([THIN] * 7 + [FitKind.STEP_TIME_UNKNOWN] * 20)[-1] is THIN


def test_what_was_found_before_another_misfit_counts_for_neither() -> None:
    told = after([THIN] * 7 + [SHORT] * 5 + [FITS] * 7)
    assert told[6:18] == [THIN] * 12
    assert told[18] is FITS
    assert after([THIN] * 7 + [SHORT] * 5 + [FITS] * 6)[-1] is THIN


def test_what_fitted_before_anything_was_told_does_not_count_for_a_misfit() -> None:
    assert after([FITS] * 5 + [THIN] * 7) == [None] * 11 + [THIN]
