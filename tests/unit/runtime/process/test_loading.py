from http import HTTPStatus
from pathlib import Path

import pytest

from diloco.runtime.process.loading import STALLED_AFTER_SECONDS, Loading, Spent, spent_by_this_process
from tests.support.hand_clock import HandClock


class Process:
    """The resources that a loading process has used, set by the test."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.cpu_seconds = 0.0
        self.read_bytes = 0
        self.waits = False
        self.loading = Loading(lambda: Spent(self.cpu_seconds, self.read_bytes), self.clock, lambda: self.waits)

    def health(self) -> int:
        return self.loading.pages()["/healthz"]().status


@pytest.mark.parametrize(("cpu_seconds", "read_bytes"), [(2.0, 0), (0.0, 2**21)])
def test_loading_that_gets_on_is_alive_however_long_it_takes(cpu_seconds: float, read_bytes: int) -> None:
    process = Process()
    for _ in range(100):
        process.clock.now += STALLED_AFTER_SECONDS - 1
        process.cpu_seconds += cpu_seconds
        process.read_bytes += read_bytes
        assert process.health() == HTTPStatus.OK


def test_loading_that_hangs_is_not_alive() -> None:
    process = Process()
    answers = []
    for _ in range(60):
        process.clock.now += STALLED_AFTER_SECONDS / 60
        process.cpu_seconds += 0.01  # what answering costs
        process.read_bytes += 1000
        answers.append(process.health())
    assert answers == [HTTPStatus.OK] * 59 + [HTTPStatus.SERVICE_UNAVAILABLE]
    process.loading.switch_to("goes on with something else")
    assert process.health() == HTTPStatus.OK


def test_one_that_waits_for_others_which_load_is_alive() -> None:
    process = Process()
    process.waits = True
    process.clock.now += STALLED_AFTER_SECONDS
    assert process.health() == HTTPStatus.OK


def test_a_file_may_take_long_to_reach_the_disk() -> None:
    process = Process()
    process.loading.switch_to("writes", 2 * STALLED_AFTER_SECONDS)
    answers = []
    for _ in range(2):
        process.clock.now += STALLED_AFTER_SECONDS
        answers.append(process.health())
    assert answers == [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE]


def test_what_it_does_is_told_and_it_is_not_ready() -> None:
    loading = Process().loading
    loading.switch_to("makes the model")
    for path in ("/readyz", "/status", "/metrics"):
        answer = loading.pages()[path]()
        assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert answer.body == b"not serving yet: makes the model\n"


def test_computing_and_reading_of_this_process_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(2**21))
    before = spent_by_this_process()
    file.read_bytes()
    after = spent_by_this_process()
    assert after.read_bytes - before.read_bytes >= 2**21
    assert after.cpu_seconds > before.cpu_seconds
    assert spent_by_this_process(tmp_path / "none").read_bytes == 0, "where they are not told"
