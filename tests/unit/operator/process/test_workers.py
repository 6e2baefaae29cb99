import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from diloco.runtime.backoff import Backoff
from diloco_operator.process.workers import Pacing, Workers
from tests.support.virtual_time import in_virtual_time

STEADY = Backoff(first_seconds=1.0, most_seconds=60.0, random=lambda: 1.0)
STEADILY = Pacing(STEADY)
FAILURE = RuntimeError("no")
Wishes = Callable[[Workers[str]], Awaitable[None]]


def at_work(recorder: "Recorder", wishes: Wishes, pacing: Pacing = STEADILY, concurrency: int = 1) -> None:
    """Let workers run the requested keys, in virtual time, as long as ``wishes`` takes."""

    async def scenario() -> None:
        recorder.origin_seconds = asyncio.get_running_loop().time()
        workers = Workers(recorder, pacing, concurrency, lambda key: key.partition("-")[0])
        task = asyncio.create_task(workers.work())
        try:
            await wishes(workers)
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    in_virtual_time(scenario())


def one_job(*seconds: float) -> Wishes:
    """Request a run of one job, again after each of the times, until the last one is over."""

    async def wishes(workers: Workers[str]) -> None:
        for pause in seconds:
            workers.enqueue("job")
            await asyncio.sleep(pause)

    return wishes


class Recorder:
    """A run that records when it began, takes `seconds` and returns the next of `answers`, the last one forever."""

    def __init__(self, *answers: float | Exception | None, seconds: float = 0.0) -> None:
        self.began: dict[str, list[float]] = {}
        self.origin_seconds = 0.0
        self.at_once: Counter[str] = Counter()
        self.most_at_once = 0
        self.most_of_one_key = 0
        self._answers = list(answers) or [None]
        self._seconds = seconds

    async def __call__(self, key: str) -> float | None:
        self.began.setdefault(key, []).append(asyncio.get_running_loop().time() - self.origin_seconds)
        self.at_once[key] += 1
        self.most_at_once = max(self.most_at_once, self.at_once.total())
        self.most_of_one_key = max(self.most_of_one_key, self.at_once[key])
        await asyncio.sleep(self._seconds)
        self.at_once[key] -= 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_hundred_wishes_for_one_key_make_one_run() -> None:
    recorder = Recorder(None)

    async def wishes(workers: Workers[str]) -> None:
        for _ in range(100):
            workers.enqueue("job")
        await asyncio.sleep(100)

    at_work(recorder, wishes, concurrency=2)
    assert len(recorder.began["job"]) == 1


def test_wishes_during_a_run_make_one_more_after_it() -> None:
    recorder = Recorder(None, seconds=10.0)
    at_work(recorder, one_job(1, 1, 1, 1, 100), Pacing(STEADY, pause_seconds=0.5), concurrency=4)
    assert recorder.began["job"] == [0.0, 10.5]
    assert recorder.most_of_one_key == 1


def test_thousands_of_keys_all_run_and_never_more_at_once_than_allowed() -> None:
    recorder = Recorder(None, seconds=1.0)

    async def wishes(workers: Workers[str]) -> None:
        for number in range(4000):
            workers.enqueue(f"{number}")
        assert workers.depth == 4000
        await asyncio.sleep(4000 / 8 + 1)
        assert workers.depth == 0

    at_work(recorder, wishes, concurrency=8)
    assert len(recorder.began) == 4000
    assert recorder.most_at_once == 8


BUSY = Pacing(STEADY, least_seconds=lambda _: 30.0)
Answers = tuple[float | Exception | None, ...]
RUNS: dict[str, tuple[Answers, Wishes, Pacing, list[float]]] = {
    "it runs again when the run said so": ((5.0, 60.0, None), one_job(1000), STEADILY, [0.0, 5.0, 65.0]),
    "a wish comes before a planned run and replaces it": ((60.0,), one_job(20, 70), STEADILY, [0.0, 20.0, 80.0]),
    "a run that asks for another at once pauses first": (
        *((0.0, 0.0, None), one_job(10), Pacing(STEADY, pause_seconds=0.5), [0.0, 0.5, 1.0]),
    ),
    "success forgets earlier failures": (
        *((FAILURE, FAILURE, 10.0, FAILURE, 1000.0), one_job(500), STEADILY, [0.0, 1.0, 3.0, 13.0, 14.0]),
    ),
    # After 100 it starts again, and its first failure waits as long as any first failure.
    "a key that is gone is forgotten and may come back": (
        *((FAILURE, FAILURE, None, FAILURE, None), one_job(100, 100), STEADILY, [0.0, 1.0, 3.0, 100.0, 101.0]),
    ),
    "a new wish ends the wait for an error": ((FAILURE, 1000.0), one_job(0.5, 500), STEADILY, [0.0, 0.5]),
    "but not the wait for a busy server": ((FAILURE, 1000.0), one_job(5, 500), BUSY, [0.0, 30.0]),
}


@pytest.mark.parametrize("case", RUNS)
def test_when_a_key_runs_again(case: str) -> None:
    answers, wishes, pacing, began = RUNS[case]
    recorder = Recorder(*answers)
    at_work(recorder, wishes, pacing)
    assert recorder.began["job"] == began


def test_errors_are_tried_again_at_growing_intervals_until_one_succeeds() -> None:
    recorder = Recorder(FAILURE, FAILURE, FAILURE, FAILURE, 1000.0)
    told: list[tuple[object, Exception]] = []
    at_work(recorder, one_job(500), Pacing(STEADY, failed=lambda key, error: told.append((key, error))))
    assert recorder.began["job"] == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert told == [("job", FAILURE)] * 4


SLOWLY = Pacing(Backoff(first_seconds=60.0, most_seconds=300.0, random=lambda: 1.0))


def test_a_wish_during_a_run_that_fails_waits_as_long_as_the_error_asks() -> None:
    recorder = Recorder(FAILURE, 1000.0, seconds=1.0)
    at_work(recorder, one_job(0.5, 500), SLOWLY)
    assert recorder.began["job"] == [0.0, 61.0]


def test_a_wish_after_an_error_shortens_the_wait_and_does_not_end_it() -> None:
    recorder = Recorder(FAILURE, 1000.0)
    at_work(recorder, one_job(1, 500), SLOWLY)
    assert recorder.began["job"] == [0.0, 15.0]


def test_one_failing_key_keeps_no_other_from_running() -> None:
    recorder = Recorder(FAILURE)

    async def wishes(workers: Workers[str]) -> None:
        workers.enqueue("bad")
        workers.enqueue("good")
        await asyncio.sleep(0.5)

    at_work(recorder, wishes)
    assert recorder.began["good"] == [0.0]


def test_a_tenant_whose_runs_all_wait_keeps_no_other_waiting() -> None:
    recorder = Recorder(None, seconds=3.0)

    async def wishes(workers: Workers[str]) -> None:
        for number in range(100):
            workers.enqueue(f"silent-{number}")
        await asyncio.sleep(1)
        assert workers.running == 8
        workers.enqueue("other-0")
        await asyncio.sleep(100)

    at_work(recorder, wishes, concurrency=12)
    assert recorder.began["other-0"] == [1.0]
    assert len(recorder.began) == 101


def test_tenants_take_turns() -> None:
    recorder = Recorder(None, seconds=1.0)

    async def wishes(workers: Workers[str]) -> None:
        for number in range(10):
            workers.enqueue(f"many-{number}")
        workers.enqueue("few-0")
        await asyncio.sleep(100)

    at_work(recorder, wishes)
    assert recorder.began["few-0"] == [1.0]
