import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diloco.plan.fit.fit import FitKind
from diloco.runtime.process.busy import Moved
from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import LinksStatus
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.link_watch import EVERY_SECONDS, HOLD_SECONDS, LinkWatch, Watched, judge
from tests.support.hand_clock import HandClock
from tests.support.job_engine import engine_of
from tests.support.situations import NEEDED, situation
from tests.support.status_of_a_job import changed
from tests.support.syncer_process import SmallJob


def test_remedies_are_told_with_the_verdict_and_stay_with_it() -> None:
    thin, thinner = situation(rates=0.9 * NEEDED), situation(rates=0.5 * NEEDED)
    watched = Watched()
    for turn in range(12):
        watched = judge(watched, thin if turn < 8 else thinner, turn * EVERY_SECONDS)
    assert watched.verdict.reported is not None
    assert "111 %" in watched.verdict.reported.reason
    assert watched.remedies[:2] == ("sync.downlink: BF16", "sync.interval: 29")
    assert watched.latest is not None
    assert watched.latest.links[0].down_share == 2.0


def test_learners_that_wait_in_lock_step_do_as_they_are_told() -> None:
    far: dict[str, Any] = {"steps": [0.05] * 4, "round_trips": 0.4, "staleness_bound_steps": 26}
    told = {quorum: Watched() for quorum in (1, 4)}
    for turn in range(12):
        for quorum, watched in told.items():
            told[quorum] = judge(watched, situation(quorum=quorum, **far), turn * EVERY_SECONDS)
    kinds = {quorum: watched.verdict.reported and watched.verdict.reported.kind for quorum, watched in told.items()}
    assert kinds == {1: FitKind.STALENESS_BOUND_TOO_LOW, 4: FitKind.FITS}


def test_a_job_whose_intervals_are_long_is_watched_for_longer() -> None:
    slow = situation(steps=[60.0] * 4, rates=0.001 * NEEDED)
    watched = judge(Watched(), slow, 0.0)
    assert judge(watched, slow, 2 * HOLD_SECONDS).verdict.reported is None
    assert judge(watched, slow, 2 * 24 * 60.0).verdict.reported is not None


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

    async def look(
        self, times: int, down_share: float = 0.5, *added: LearnerStatus, **changes: Any
    ) -> LinksStatus | None:
        """Look every five seconds, while going as due takes ``down_share`` of the learners' links.

        Returns what is told then. ``added``: other learners; ``changes``: of the first two.
        """
        rate = sum(self.sizes) / (self.interval * 0.5) / down_share
        for _ in range(times):
            self.turns += 1
            for index in range(2):
                self.meter.pulled(f"here/cpu/{index}", Moved(float(self.turns), round(rate * self.turns)))
            view = self.engine.view(1.0)
            learners = (*(changed(learner, **changes) for learner in view.learners), *added)
            await self.watch.look(changed(view, learners=learners), 5.0 * self.turns, self.threads)
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
    assert bench.threads.calls == 13  # once in 15 seconds


async def test_a_verdict_is_told_90_seconds_after_the_first_one(bench: Bench) -> None:
    assert await bench.look(20) is None
    told = reported(await bench.look(1))
    assert (told.kind, told.remedies, told.since_seconds) == ("Fits", (), 0.0)
    assert reported(bench.watch.status(112.5)).since_seconds == 7.5


@pytest.mark.parametrize(("share", "level", "kind"), [(1.5, "WARNING", "LinkTooThin"), (0.5, "INFO", "Fits")])
async def test_a_verdict_is_logged_once_and_loudly_if_it_is_a_misfit(
    bench: Bench, caplog: pytest.LogCaptureFixture, share: float, level: str, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    await bench.look(60, share)
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith(f"links: {kind}: ")


async def test_how_long_learners_take_to_answer_is_judged(bench: Bench) -> None:
    told = reported(await bench.look(59, answer_seconds=60.0))
    assert told.kind == "RoundTooLong"
    assert told.reason.startswith("a fragment is under way for 120.5 of the interval's 4 steps")
    assert told.reason.endswith("lost (as measured: a busy processor at either end slows a link, too)")


async def test_every_link_of_a_learner_that_trains_and_has_made_steps_is_shown(bench: Bench) -> None:
    one, _ = bench.engine.view(1.0).learners
    stays, leaves, new = (changed(one, id=f"here/gpu/{index}") for index in range(3))
    # At first these train and are near; later one is away, and what is known of it is not used.
    await bench.look(3, 0.5, stays, leaves)
    away, new = changed(leaves, state="Absent", answer_seconds=60.0), changed(new, step_seconds=None)
    told = reported(await bench.look(56, 0.5, stays, away, new))
    assert told.kind == "Fits"
    assert [(use.name, use.learners) for use in told.used] == [("here/cpu", 2), ("here/gpu", 1)]


async def test_a_job_that_is_over_is_judged_no_more(bench: Bench) -> None:
    over = changed(bench.engine.view(1.0), phase="Evaluating")
    for turn in range(1, 60):
        await bench.watch.look(over, 5.0 * turn, bench.threads)
    assert bench.threads.calls == 0
