import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diloco.plan.outcome import Outcome
from diloco.plan.situation import Situation
from diloco.plan.verdict import FitKind
from diloco.runtime.process.busy import Moved
from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import LinksStatus
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.link_watch import LinkWatch, Watched
from tests.support.hand_clock import HandClock
from tests.support.job_engine import engine_of
from tests.support.situations import NEEDED, situation
from tests.support.status_of_a_job import changed
from tests.support.syncer_process import SmallJob
from tests.unit.plan.test_verdict import WELL, outcome


def windows(*outcomes: tuple[Situation, Outcome]) -> Watched:
    watched = Watched()
    for number, (given, found) in enumerate(outcomes, 1):
        watched = watched.after(given, found, 45.0 * number, 10**12)
    return watched


FITS, THIN, THINNER = situation(), situation(rates=0.9 * NEEDED), situation(rates=0.5 * NEEDED)


def test_a_verdict_is_told_when_two_windows_agree_and_stays_as_it_was() -> None:
    assert windows((THIN, outcome())).reported is None
    told = windows((THIN, outcome()), (THIN, outcome()), (THINNER, outcome()), (FITS, outcome()))
    assert told.reported is not None
    assert "111 %" in told.reported.reason
    assert told.reported.reason.endswith("(as measured: a busy processor at either end slows a link, too)")
    assert (told.since, told.remedies[:2]) == (90.0, ("sync.downlink: BF16", "sync.interval: 29"))
    assert told.latest is not None
    assert told.latest.fits
    last = windows((THIN, outcome()), (THIN, outcome()), (FITS, outcome()), (FITS, outcome()))
    assert last.reported is not None
    assert (last.reported.fits, last.since, last.remedies) == (True, 180.0, ())


def test_alternating_misfits_are_told_and_one_that_comes_and_goes_is_not() -> None:
    late = (FITS, outcome(replace(WELL, late=0.9)))
    told = windows((THIN, outcome()), late)
    assert told.reported is not None
    assert told.reported.kind is FitKind.ROUND_TOO_LONG
    assert windows(late, (FITS, outcome()), late, (FITS, outcome())).reported is None


def test_a_window_in_which_nobody_worked_tells_nothing() -> None:
    nothing = replace(outcome(), pools=())
    assert windows((FITS, nothing), (FITS, nothing)).latest is None


def test_links_that_let_no_work_be_settled_are_told() -> None:
    hopeless, nothing = situation(rates=0.01 * NEEDED), replace(outcome(), pools=(), merges=0)
    told = windows((hopeless, nothing), (hopeless, nothing))
    assert told.reported is not None
    assert told.reported.kind is FitKind.LINK_TOO_THIN
    assert told.remedies


class CountedThreads(ThreadPoolExecutor):
    """A thread that counts what it is given."""

    calls = 0

    def submit(self, *call: Any, **more: Any) -> Any:
        self.calls += 1
        return super().submit(*call, **more)


class Bench:
    """A job of two learners that train, with steps of half a second."""

    def __init__(self, folder: Path, threads: CountedThreads) -> None:
        job = SmallJob(folder)
        self.engine, self.threads = engine_of(job), threads
        self.sizes = [4 * fragment.numel for fragment in job.layout.fragments]
        self.interval = job.job.spec.sync.interval
        self.meter = LinkMeter(HandClock())
        self.watch = LinkWatch(job.job.spec.sync, job.layout, lambda _: 64, self.meter)
        self.turns = 0
        self.overwritten = 0.1

    async def look(
        self, times: int, down_share: float = 0.5, *added: LearnerStatus, **changes: Any
    ) -> LinksStatus | None:
        """Look every five seconds, while going as due takes ``down_share`` of the learners' links.

        Returns what is told then. ``added``: other learners; ``changes``: of the first two. All work is merged, but
        for the share that is ``self.overwritten``.
        """
        rate = sum(self.sizes) / (self.interval * 0.5) / down_share
        for _ in range(times):
            self.turns += 1
            for index in range(2):
                self.meter.pulled(f"here/cpu/{index}", Moved(float(self.turns), round(rate * self.turns)))
            view = self.engine.view(1.0)
            seconds = 5.0 * self.turns
            split = {"merged": (1 - self.overwritten) * seconds, "overwritten": self.overwritten * seconds}
            given = (*(changed(learner, **changes) for learner in view.learners), *added)
            learners = tuple(changed(one, time_seconds=split, tokens=64 * self.turns) for one in given)
            view = changed(view, learners=learners, elapsed_seconds=seconds, syncer_step=self.turns)
            await self.watch.look(view, seconds, self.threads)
        return self.watch.status(5.0 * self.turns)


def reported(status: LinksStatus | None) -> LinksStatus:
    assert status is not None
    return status


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with CountedThreads(1) as threads:
        yield Bench(tmp_path, threads)


async def test_links_that_are_measured_too_thin_are_told_with_remedies(bench: Bench) -> None:
    told = reported(await bench.look(40, 1.5))
    assert told.kind == "LinkTooThin"
    assert told.reason.startswith("the link here/cpu would be used to 150 % by merged fragments on the way down of 2")
    assert any(remedy.startswith("sync.interval: ") for remedy in told.remedies)
    (use,) = told.used
    assert (use.name, use.learners, round(use.down, 2)) == ("here/cpu", 2, 1.5)
    assert bench.threads.calls == 4  # once in 45 seconds, which begin at 5 s


async def test_a_verdict_is_told_after_two_windows(bench: Bench) -> None:
    assert await bench.look(18) is None
    told = reported(await bench.look(1))
    assert (told.kind, told.remedies, told.since_seconds) == ("Fits", (), 0.0)
    assert reported(bench.watch.status(102.5)).since_seconds == 7.5


async def test_a_window_is_no_shorter_than_an_interval(bench: Bench) -> None:
    assert await bench.look(48, step_seconds=30.0) is None  # four steps: 120 s
    assert reported(await bench.look(1, step_seconds=30.0)).kind == "Fits"
    assert bench.threads.calls == 2


@pytest.mark.parametrize(("share", "level", "kind"), [(1.5, "WARNING", "LinkTooThin"), (0.5, "INFO", "Fits")])
async def test_a_verdict_is_logged_once_and_loudly_if_it_is_a_misfit(
    bench: Bench, caplog: pytest.LogCaptureFixture, share: float, level: str, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    await bench.look(60, share)
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith(f"links: {kind}: ")


async def test_what_becomes_of_the_work_is_judged(bench: Bench) -> None:
    bench.overwritten = 0.75
    told = reported(await bench.look(59))
    assert (told.kind, told.remedies) == ("RoundTooLong", ("sync.interval: 6",))
    assert told.reason.startswith("a fragment is under way for 3.0 of the interval's 4 steps of 0.5 s at here/cpu")
    assert told.reason.endswith("lost (as measured: a busy processor at either end slows a link, too)")


async def test_every_link_of_a_learner_that_trains_and_has_made_steps_is_shown(bench: Bench) -> None:
    one, _ = bench.engine.view(1.0).learners
    stays, leaves, new = (changed(one, id=f"here/gpu/{index}") for index in range(3))
    # At first these train and are near; later one is away, and what is known of it is not used.
    await bench.look(3, 0.5, stays, leaves)
    away, new = changed(leaves, state="Absent"), changed(new, step_seconds=None)
    told = reported(await bench.look(56, 0.5, stays, away, new))
    assert told.kind == "Fits"
    assert [(use.name, use.learners) for use in told.used] == [("here/cpu", 2), ("here/gpu", 1)]


async def test_a_job_that_is_over_is_judged_no_more(bench: Bench) -> None:
    over = changed(bench.engine.view(1.0), phase="Evaluating")
    for turn in range(1, 60):
        await bench.watch.look(over, 5.0 * turn, bench.threads)
    assert bench.threads.calls == 0
