"""Keeps the reported verdict on a running job's links stable: it changes only after it has lasted a while (ours).

Measurements vary, and a link that is nearly full may seem too thin in one minute and not in the next. A verdict is
reported once it has been found without a break for the required time, and withdrawn by the same rule. Pure: the time is
an argument.
"""

from dataclasses import dataclass, replace
from typing import Self

from diloco.plan.fit.fit import Fit, FitKind


@dataclass(frozen=True, slots=True)
class SteadyVerdict:
    """The reported verdict, and the one that may replace it."""

    reported: Fit | None = None
    """The fit when it was first reported, so that its text stays the same while the verdict does. None: nothing yet."""
    since: float = 0.0
    """When it was first reported."""
    found: FitKind | None = None
    """Another kind than the reported one, found since ``found_at`` without a break."""
    found_at: float = 0.0

    def after(self, fit: Fit, now: float, hold_seconds: float) -> Self:
        """Add a verdict at ``now`` (seconds): it is reported once it has lasted for ``hold_seconds``.

        While step times are unknown, there is no verdict. Of alternating misfits the last one is reported.
        """
        if fit.kind is FitKind.STEP_TIME_UNKNOWN:
            return self
        if self.reported is not None and fit.kind is self.reported.kind:
            return replace(self, found=None)
        reported_fits = self.reported is None or self.reported.fits
        # From a job that fits to one that does not: the kind of misfit may change during that time.
        misfits = self.found is not FitKind.FITS and not fit.fits
        same = self.found is not None and (self.found is fit.kind or (reported_fits and misfits))
        found_at = self.found_at if same else now
        if now - found_at >= hold_seconds:
            return type(self)(reported=fit, since=now)
        return replace(self, found=fit.kind, found_at=found_at)
