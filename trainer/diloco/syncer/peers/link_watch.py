"""Checks whether a running job's overlap, interval and links fit together, by what is measured, and reports a verdict.

A verdict is of a window of time. It is reported once two windows in a row agree, and withdrawn by the same rule: a link
that is nearly full may seem too thin in one and not in the next. Owned by the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

from diloco.core.fragments import Layout
from diloco.plan.changes import measured_remedies
from diloco.plan.outcome import Outcome
from diloco.plan.situation import Exchange, Situation
from diloco.plan.verdict import Fit, FitKind, judge
from diloco.spec.names.learner_ids import region_of
from diloco.spec.status.engine import EngineStatus, LearnerState, Phase
from diloco.spec.status.syncer import LinksStatus, LinkStatus, MeasuredLinkStatus
from diloco.spec.sync import SyncSpec
from diloco.spec.words import listed
from diloco.syncer.peers.link_meter import LinkMeter, RecentSeconds
from diloco.syncer.peers.measured_links import MeasuredLearner, measured_situation

_log = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 45.0
"""Least time that a verdict is of (ours); an interval if that is longer."""

_AS_MEASURED: Final = "as measured: a busy processor at either end slows a link, too"


@dataclass(frozen=True, slots=True)
class Watched:
    """The verdict of the latest window, and the one that is reported."""

    latest: Fit | None = None
    reported: Fit | None = None
    """As it was when it was first reported, so that its text stays the same while the verdict does. None: none yet."""
    since: float = 0.0
    """When it was first reported."""
    remedies: tuple[str, ...] = ()

    def after(self, situation: Situation, outcome: Outcome, now: float, budget_tokens: int) -> "Watched":
        """Add a window that ends at ``now`` (seconds), of a job with this budget.

        One in which no work was settled tells only what arithmetic does: where links are much too thin, none ever is.
        """
        found = judge(situation, outcome if outcome.pools else None)
        if found.kind is FitKind.STEP_TIME_UNKNOWN or (found.fits and not outcome.pools):
            return self
        if found.kind in (FitKind.LINK_TOO_THIN, FitKind.ROUND_TOO_LONG):
            found = replace(found, reason=f"{found.reason} ({_AS_MEASURED})")
        before, told = self.latest, self.reported
        then = replace(self, latest=found)
        if before is None or (told is not None and told.kind is found.kind):
            return then
        # From a job that fits to one that does not: the kind of misfit may change meanwhile.
        misfits = (told is None or told.fits) and not before.fits and not found.fits
        if before.kind is not found.kind and not misfits:
            return then
        remedies = tuple(listed(changes, "and") for changes in measured_remedies(situation, found, budget_tokens))
        return Watched(found, found, now, remedies)


class LinkWatch:
    """Watches the links of one job."""

    def __init__(self, sync: SyncSpec, layout: Layout, tokens_per_step: Callable[[str], int], meter: LinkMeter) -> None:
        self._exchange = Exchange.of(sync, tuple(fragment.numel for fragment in layout.fragments))
        self._tokens_per_step = tokens_per_step
        self._meter = meter
        self._begin: tuple[float, EngineStatus] | None = None
        """Of the window."""
        self._due = 0.0
        self._steps: dict[str, RecentSeconds] = {}
        self._watched = Watched()

    async def look(self, view: EngineStatus, now: float, threads: Executor) -> None:
        """Take a sample and, if a window is over, reach another verdict. Call it about every second."""
        if self._meter.sample(now):
            for learner in view.learners:
                if learner.state == LearnerState.TRAINING and learner.step_seconds:
                    self._steps.setdefault(learner.id, RecentSeconds()).add(learner.step_seconds)
        if view.phase != Phase.TRAINING:
            self._begin = None
        elif self._begin is None:
            self._begin, self._due = (now, view), now + WINDOW_SECONDS
        elif now >= self._due:
            began, before = self._begin
            situation = self._situation(view)
            self._due = began + self._exchange.interval * (situation.quorum_step_seconds or 0.0)
            if now >= self._due:
                self._begin, self._due = (now, view), now + WINDOW_SECONDS
                loop = asyncio.get_running_loop()
                outcome = await loop.run_in_executor(threads, Outcome.between, before, view)
                self._take(self._watched.after(situation, outcome, now, view.budget_tokens))

    def _take(self, watched: Watched) -> None:
        told = watched.reported
        if told is not None and told is not self._watched.reported:
            _log.log(logging.INFO if told.fits else logging.WARNING, "links: %s: %s", told.kind.value, told.reason)
        self._watched = watched

    def _situation(self, view: EngineStatus) -> Situation:
        return measured_situation(
            self._exchange,
            (
                self._measured(learner.id)
                for learner in view.learners
                if learner.state == LearnerState.TRAINING and learner.id in self._steps
            ),
            view.merge_seconds or 0.0,
        )

    def status(self, now: float) -> LinksStatus | None:
        """What is reported; None before the first verdict."""
        told, latest = self._watched.reported, self._watched.latest
        if told is None:
            return None
        return LinksStatus(
            kind=told.kind.value,
            reason=told.reason,
            since_seconds=max(0.0, now - self._watched.since),
            remedies=self._watched.remedies,
            used=tuple(
                LinkStatus(name=use.name, learners=use.learners, up=use.up_share, down=use.down_share)
                for use in (() if latest is None else latest.links[:-1])  # without the syncer's own
            ),
        )

    def measured(self) -> tuple[MeasuredLinkStatus, ...]:
        """The links of the regions whose learners have made steps."""
        regions = dict.fromkeys(map(region_of, self._steps))
        return tuple(
            MeasuredLinkStatus(region=region, up_bytes_per_second=self._meter.region_rate(region)) for region in regions
        )

    def _measured(self, learner: str) -> MeasuredLearner:
        rates = self._meter.rates(learner)
        tokens = float(self._tokens_per_step(learner))
        return MeasuredLearner(learner, self._steps[learner].median, tokens, rates.up, rates.down)
