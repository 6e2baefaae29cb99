"""Checks whether a running job's overlap, interval and links fit together, and reports a verdict once it has lasted.

Owned by the event loop, except for `judge`, which is pure and may take long enough to need a thread.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Final

from diloco.core.fragments import Layout
from diloco.plan.fit.fit import Fit, FitKind, fit
from diloco.plan.fit.measured import MeasuredLearner, measured_situation
from diloco.plan.fit.remedies import remedies
from diloco.plan.fit.situation import Exchange, Situation
from diloco.plan.fit.steady_verdict import SteadyVerdict
from diloco.spec.names.learner_ids import region_of
from diloco.spec.status.engine import EngineStatus, LearnerState, Phase
from diloco.spec.status.syncer import LinksStatus, LinkStatus, MeasuredLinkStatus
from diloco.spec.sync import SyncSpec
from diloco.syncer.peers.link_meter import LinkMeter, RecentSeconds

_log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 15.0
"""Time between two verdicts (ours)."""
HOLD_SECONDS: Final = 90.0
"""How long a verdict must have lasted before it is reported (ours); at least two intervals."""

_AS_MEASURED: Final = "as measured: a busy processor at either end slows a link, too"


@dataclass(frozen=True, slots=True)
class Watched:
    """The latest verdict, and the one that is reported."""

    verdict: SteadyVerdict = field(default_factory=SteadyVerdict)
    remedies: tuple[str, ...] = ()
    """Remedies for the verdict that is reported."""
    latest: Fit | None = None


def judge(before: Watched, situation: Situation, now: float) -> Watched:
    """Judge a situation at ``now``."""
    found = fit(situation)
    if found.kind is FitKind.STALENESS_BOUND_TOO_LOW and situation.exchange.quorum >= situation.learners:
        # With lock-step synchronization, learners are meant to wait until the round is over.
        found = replace(found, kind=FitKind.FITS)
    if found.kind in (FitKind.LINK_TOO_THIN, FitKind.ROUND_TOO_LONG):
        found = replace(found, reason=f"{found.reason} ({_AS_MEASURED})")
    hold_seconds = max(HOLD_SECONDS, 2 * situation.exchange.interval * (found.step_seconds or 0.0))
    verdict = before.verdict.after(found, now, hold_seconds)
    if verdict.reported is before.verdict.reported:
        return Watched(verdict, before.remedies, found)
    return Watched(verdict, tuple(map(str, remedies(situation))), found)


class LinkWatch:
    """Watches the links of one job."""

    def __init__(self, sync: SyncSpec, layout: Layout, tokens_per_step: Callable[[str], int], meter: LinkMeter) -> None:
        self._exchange = Exchange.of(sync, tuple(fragment.numel for fragment in layout.fragments))
        self._tokens_per_step = tokens_per_step
        self._meter = meter
        self._due = EVERY_SECONDS
        self._steps: dict[str, RecentSeconds] = {}
        self._answers: dict[str, RecentSeconds] = {}
        self._watched = Watched()

    async def look(self, view: EngineStatus, now: float, threads: Executor) -> None:
        """Take a sample and, if due, reach another verdict. Call it about every second."""
        if self._meter.sample(now):
            for learner in view.learners:
                if learner.state == LearnerState.TRAINING and learner.step_seconds:
                    self._steps.setdefault(learner.id, RecentSeconds()).add(learner.step_seconds)
                if learner.state == LearnerState.TRAINING and learner.answer_seconds is not None:
                    self._answers.setdefault(learner.id, RecentSeconds()).add(learner.answer_seconds)
        if now < self._due or view.phase != Phase.TRAINING:
            return
        self._due = now + EVERY_SECONDS
        before = self._watched
        situation = self._situation(view)
        self._watched = await asyncio.get_running_loop().run_in_executor(threads, judge, before, situation, now)
        told = self._watched.verdict.reported
        if told is not None and told is not before.verdict.reported:
            _log.log(logging.INFO if told.fits else logging.WARNING, "links: %s: %s", told.kind.value, told.reason)

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
        """What is reported; None before the first verdict has lasted long enough."""
        told, latest = self._watched.verdict.reported, self._watched.latest
        if told is None:
            return None
        return LinksStatus(
            kind=told.kind.value,
            reason=told.reason,
            since_seconds=max(0.0, now - self._watched.verdict.since),
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
        rates, answers = self._meter.rates(learner), self._answers.get(learner)
        return MeasuredLearner(
            learner,
            self._steps[learner].median,
            float(self._tokens_per_step(learner)),
            None if answers is None else answers.median,
            rates.up,
            rates.down,
        )
