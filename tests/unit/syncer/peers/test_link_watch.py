import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diloco.core.actions import Admit
from diloco.core.engine import Engine, EngineOptions
from diloco.core.events import LearnerJoined, LearnerReady, StepReported
from diloco.core.link_fit import FitKind
from diloco.core.view import EngineView
from diloco.runtime.busy import Moved
from diloco.spec.syncer_status import LinksStatus
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.link_watch import EVERY_SECONDS, HOLD_SECONDS, LinkWatch, Watched, judge
from tests.support.hand_clock import HandClock
from tests.support.situations import NEEDED, situation
from tests.support.syncer_process import SmallJob


def test_remedies_are_told_with_the_verdict_and_stay_with_it() -> None:
    thin, thinner = situation(rates=0.9 * NEEDED), situation(rates=0.5 * NEEDED)
    watched = Watched()
    for turn in range(12):
        watched = judge(watched, thin if turn < 8 else thinner, turn * EVERY_SECONDS)
    assert watched.judgement.told is not None
    assert "111 %" in watched.judgement.told.reason
    assert watched.remedies[:2] == ("sync.downlink: BF16", "sync.interval: 29")
    assert watched.latest is not None
    assert watched.latest.links[0].down == 2.0


def test_learners_that_wait_in_lock_step_do_as_they_are_told() -> None:
    far: dict[str, Any] = {"steps": [0.05] * 4, "round_trips": 0.4, "staleness_bound_steps": 26}
    told = {quorum: Watched() for quorum in (1, 4)}
    for turn in range(12):
        for quorum, watched in told.items():
            told[quorum] = judge(watched, situation(quorum=quorum, **far), turn * EVERY_SECONDS)
    kinds = {quorum: watched.judgement.told and watched.judgement.told.kind for quorum, watched in told.items()}
    assert kinds == {1: FitKind.STALENESS_BOUND_TOO_LOW, 4: FitKind.FITS}


def test_a_job_whose_intervals_are_long_is_watched_for_longer() -> None:
    slow = situation(steps=[60.0] * 4, rates=0.001 * NEEDED)
    watched = judge(Watched(), slow, 0.0)
    assert judge(watched, slow, 2 * HOLD_SECONDS).judgement.told is None
    assert judge(watched, slow, 2 * 24 * 60.0).judgement.told is not None


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Bench:
    """A job of two learners that train, with steps of half a second."""

    def __init__(self, folder: Path) -> None:
        job = SmallJob(folder)
        self.engine = Engine(EngineOptions.from_job(job.job, job.layout), 1)
        self.sizes = [4 * fragment.numel for fragment in job.layout.fragments]
        self.interval = job.job.spec.sync.interval
        for index in range(2):
            name = f"here/cpu/{index}"
            (admitted,) = [a for a in self.engine.step(LearnerJoined(name, "x", (), 0, 0), 0.0) if isinstance(a, Admit)]
            self.engine.step(LearnerReady(name, admitted.incarnation), 0.0)
            self.engine.step(StepReported(name, admitted.incarnation, 1, 64, 0.5, 0.0, 2.0, 4), 1.0)
        self.meter = LinkMeter(HandClock())
        self.watch = LinkWatch(job.job.spec.sync, job.layout, lambda _: 64, self.meter)

    @property
    def view(self) -> EngineView:
        return self.engine.view(1.0)

    def changed(self, **changes: Any) -> EngineView:
        """The view, with these changes of both learners."""
        return replace(self.view, learners=tuple(replace(learner, **changes) for learner in self.view.learners))

    def measure(self, turn: int, down_share: float) -> None:
        """Both learners have pulled for ``turn`` seconds; going as due takes ``down_share`` of their links."""
        rate = sum(self.sizes) / (self.interval * 0.5) / down_share
        for index in range(2):
            self.meter.pulled(f"here/cpu/{index}", Moved(float(turn), round(rate * turn)))

    async def follow(self, threads: ThreadPoolExecutor, shares: list[float]) -> LinksStatus | None:
        """Look every five seconds."""
        for turn, share in enumerate(shares, start=1):
            self.measure(turn, share)
            await self.watch.look(self.view, 5.0 * turn, threads)
        return self.watch.status(5.0 * len(shares) + 7.0)


def test_links_that_are_measured_too_thin_are_told_once_that_has_stood(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    bench = Bench(tmp_path)
    assert asyncio.run(bench.follow(threads, [1.5] * 20)) is None
    told = asyncio.run(bench.follow(threads, [1.5] * 40))
    assert told is not None
    assert told.kind == "LinkTooThin"
    assert told.reason.startswith("the link here/cpu would be used to 150 % by merged fragments on the way down of 2")
    assert any(remedy.startswith("sync.interval: ") for remedy in told.remedies)
    assert told.since_seconds > 0
    (use,) = told.used
    assert (use.name, use.learners, round(use.down, 2)) == ("here/cpu", 2, 1.5)


async def told_at(bench: Bench, threads: ThreadPoolExecutor, **changes: Any) -> float:
    """When a verdict is first reported, if somebody looks every five seconds; ``changes`` of both learners."""
    for turn in range(1, 60):
        bench.measure(turn, 0.5)
        await bench.watch.look(bench.changed(**changes), 5.0 * turn, threads)
        if bench.watch.status(5.0 * turn) is not None:
            return 5.0 * turn
    raise AssertionError("nothing is reported")


def test_a_verdict_is_told_90_seconds_after_the_first_one(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    bench = Bench(tmp_path)
    assert asyncio.run(told_at(bench, threads)) == 15.0 + 90.0
    told = bench.watch.status(105.0)
    assert told is not None
    assert (told.kind, told.remedies, told.since_seconds) == ("Fits", (), 0.0)
    later = bench.watch.status(112.5)
    assert later is not None
    assert later.since_seconds == 7.5


class CountedThreads(ThreadPoolExecutor):
    """A thread that counts what it is given."""

    calls = 0

    def submit(self, *call: Any, **more: Any) -> Any:
        self.calls += 1
        return super().submit(*call, **more)


def test_links_are_judged_every_15_seconds_and_no_more_often(tmp_path: Path) -> None:
    with CountedThreads(1) as threads:
        assert asyncio.run(Bench(tmp_path).follow(threads, [1.5] * 24)) is not None
        assert threads.calls == 24 / 3


def test_a_verdict_is_logged_once_and_loudly_if_it_is_a_misfit(
    tmp_path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    asyncio.run(bench.follow(threads, [1.5] * 60))
    asyncio.run(Bench(tmp_path).follow(threads, [0.5] * 60))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [(level, line.partition(" ")[0], line.split(": ")[1]) for level, line in lines] == [
        ("WARNING", "links:", "LinkTooThin"),
        ("INFO", "links:", "Fits"),
    ]


def test_how_long_learners_take_to_answer_is_judged(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    bench = Bench(tmp_path)
    asyncio.run(told_at(bench, threads, answer_seconds=60.0))
    told = bench.watch.status(105.0)
    assert told is not None
    assert told.kind == "RoundTooLong"
    assert told.reason.startswith("a fragment is under way for 120.5 of the interval's 4 steps")


def test_learners_that_do_not_train_or_have_made_no_step_do_not_count(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    bench = Bench(tmp_path)

    async def follow() -> None:
        for turn in range(1, 60):
            bench.measure(turn, 0.5)
            one, two = bench.view.learners
            # At first both train and are near; later the one is away, and what is known of it is not used.
            away = replace(one, state="Absent", answer_seconds=60.0) if turn > 3 else one
            new = replace(two, id="here/gpu/0", step_seconds=None)
            await bench.watch.look(replace(bench.view, learners=(away, two, new)), 5.0 * turn, threads)

    asyncio.run(follow())
    told = bench.watch.status(1000.0)
    assert told is not None
    assert told.kind == "Fits"
    assert [(use.name, use.learners) for use in told.used] == [("here/cpu", 1)]


def test_every_link_of_the_job_is_shown(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    bench = Bench(tmp_path)

    async def follow() -> None:
        for turn in range(1, 60):
            bench.measure(turn, 0.5)
            one, two = bench.view.learners
            learners = (one, two, replace(two, id="here/gpu/0"))
            await bench.watch.look(replace(bench.view, learners=learners), 5.0 * turn, threads)

    asyncio.run(follow())
    told = bench.watch.status(1000.0)
    assert told is not None
    assert [(use.name, use.learners) for use in told.used] == [("here/cpu", 2), ("here/gpu", 1)]


def test_a_job_that_is_over_is_judged_no_more(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    bench = Bench(tmp_path)

    async def follow() -> None:
        for turn in range(1, 60):
            bench.measure(turn, 1.5)
            await bench.watch.look(replace(bench.view, phase="Evaluating"), 5.0 * turn, threads)

    asyncio.run(follow())
    assert bench.watch.status(1000.0) is None
