"""What is told of a running job's links: a verdict that has stood for a while, so that it does not flicker (ours).

Measurements move, and a link that is nearly full may seem too thin in one minute and not in the next. A verdict is told
once it has been found again and again for as long as is asked, and taken back by the same rule. Pure: the time is an
argument.
"""

from dataclasses import dataclass, replace
from typing import Self

from diloco.core.fit import Fit, FitKind


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is told, and what may be told next."""

    told: Fit | None = None
    """As it was found when it began to be told: its words stay the same while the verdict does. None: nothing yet."""
    since: float = 0.0
    """When it began to be told."""
    found: FitKind | None = None
    """Another kind than is told, found since ``found_at`` without a break."""
    found_at: float = 0.0

    def after(self, fit: Fit, now: float, hold_seconds: float) -> Self:
        """Take in a verdict at ``now`` (seconds): it is told once it has stood for ``hold_seconds``.

        While step times are not known nothing is found. Of misfits that alternate the last one is told.
        """
        if fit.kind is FitKind.STEP_TIME_UNKNOWN:
            return self
        if self.told is not None and fit.kind is self.told.kind:
            return replace(self, found=None)
        told_fits = self.told is None or self.told.fits
        # From a job that fits to one that does not: which misfit it is may change while it is found.
        misfits = self.found is not FitKind.FITS and not fit.fits
        same = self.found is not None and (self.found is fit.kind or (told_fits and misfits))
        found_at = self.found_at if same else now
        if now - found_at >= hold_seconds:
            return type(self)(told=fit, since=now)
        return replace(self, found=fit.kind, found_at=found_at)
