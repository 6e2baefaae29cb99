"""The body of the thread that writes checkpoints, run by the test with a scripted disk."""

import contextlib
import logging
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from diloco.learner.checkpoint import CheckpointStore, CheckpointWriteError, LearnerCheckpoint
from diloco.learner.checkpoint_writer import CheckpointWriter
from diloco.learner.exchange.residuals import Residual
from diloco.learner.training.devices.host_copies import HostTensors
from diloco.learner.training.fragment_trainer import TrainerState
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition

FULL = CheckpointWriteError("checkpoint not written (no space left)")


class Disk(CheckpointStore):
    """A disk that keeps the steps of saved checkpoints; a write may fail, or call something."""

    def __init__(self, *fates: CheckpointWriteError | Callable[[], object] | None) -> None:
        self.fates = list(fates)
        self.saved: list[int] = []

    def save(self, checkpoint: LearnerCheckpoint) -> Path:
        fate = self.fates.pop(0) if self.fates else None
        if isinstance(fate, CheckpointWriteError):
            raise fate
        if fate is not None:
            fate()
        self.saved.append(checkpoint.state.steps)
        return Path()


class Bench:
    """A writer on a disk."""

    def __init__(self, *fates: CheckpointWriteError | Callable[[], object] | None) -> None:
        self.disk = Disk(*fates)
        self.writer = CheckpointWriter(self.disk.save)
        self.condition = self.writer._condition = ScriptedCondition()

    def offer(self, steps: int) -> bool:
        return self.writer.offer(lambda: LearnerCheckpoint(TrainerState({}, 0, steps, 0, 0), {}))

    def works(self, *events: Callable[[], object]) -> None:
        """Run it until there is nothing to write, or it is closed."""
        self.condition.events = list(events)
        with contextlib.suppress(NothingToDoError):
            self.writer.run()


def test_it_waits_until_the_copies_of_a_snapshot_are_whole() -> None:
    copies, seen = HostTensors({"exp_avg.w": torch.zeros(2)}), []
    copies.copied = cast("Any", SimpleNamespace(synchronize=lambda: copies["exp_avg.w"].fill_(3.0)))
    bench = Bench(lambda: seen.append(copies["exp_avg.w"].tolist()))
    assert bench.writer.offer(lambda: LearnerCheckpoint(TrainerState(copies, 0, 5, 0, 0), {}))
    bench.works()
    assert (bench.disk.saved, seen) == ([5], [[3.0, 3.0]])


def test_it_writes_what_is_offered_and_ends_when_it_is_closed() -> None:
    bench = Bench()
    written = [bench.writer.written_steps]
    bench.works(
        lambda: bench.offer(10),
        lambda: bench.offer(20),
        bench.writer.close,
        lambda: pytest.fail("goes on"),
    )
    written.append(bench.writer.written_steps)
    assert (bench.disk.saved, written) == ([10, 20], [None, 20])


def test_what_is_written_is_held_in_memory_no_longer() -> None:
    bench = Bench()
    tensors = [torch.zeros(1)]
    written = weakref.ref(tensors[0])
    bench.writer.offer(lambda: LearnerCheckpoint(TrainerState({}, 0, 10, 0, 0), {0: Residual(1, tensors.pop())}))
    left: list[object] = []

    def looks() -> None:
        left.append(written())
        bench.writer.close()

    bench.works(looks)
    assert left == [None]


def test_what_comes_while_one_waits_or_is_written_is_passed_over() -> None:
    answers: list[bool] = []
    bench = Bench(lambda: answers.append(bench.offer(20)))
    answers += [bench.offer(10), bench.offer(15)]
    bench.works()
    answers.append(bench.offer(30))
    assert answers == [True, False, False, True]
    assert bench.disk.saved == [10]


def test_closing_waits_for_what_is_to_be_written_and_says_whether_it_was() -> None:
    answers: list[bool] = []
    bench = Bench(lambda: answers.append(bench.writer.close()))
    bench.offer(10)
    bench.condition.events = [None]
    assert not bench.writer.close()
    assert bench.condition.waits == [60.0]
    bench.works()
    answers.append(bench.writer.close())
    assert (answers, bench.disk.saved) == ([False, True], [10])
    assert len(bench.condition.waits) == 1, "only the first call waits"


def test_the_last_one_may_take_as_long_as_its_size_needs() -> None:
    bench = Bench()
    large = torch.empty(250_000_000, dtype=torch.float32, device="meta")
    longest = [bench.writer.longest_seconds()]
    for number in (0, 1, 4):
        residuals = dict.fromkeys(range(number), Residual(1, large))
        bench.writer.offer(partial(LearnerCheckpoint, TrainerState({}, 0, number, 0, 0), residuals))
        bench.works()
        longest.append(bench.writer.longest_seconds())
    assert longest == [60.0, 60.0, 60.0, 80.0]


def test_the_last_one_waits_until_the_disk_is_free() -> None:
    bench = Bench()
    last = LearnerCheckpoint(TrainerState({}, 0, 20, 0, 0), {})
    bench.offer(10)
    assert not bench.writer.finish(lambda: last, 0.0)
    bench.condition.events = [bench.works]
    assert bench.writer.finish(lambda: last, 60.0)
    assert bench.condition.waits[:1] == [60.0]
    bench.works()
    assert bench.disk.saved == [10, 20]


def test_a_full_disk_is_told_once_until_there_is_room_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(FULL, FULL, None, FULL)
    assert bench.writer.problem == "the disk was busy"
    told = []
    for steps in (10, 20, 30, 40):
        bench.offer(steps)
        bench.works()
        told.append(([record.getMessage() for record in caplog.records], bench.writer.written_steps))
        caplog.clear()
    failing = [f"{FULL}; training continues"]
    assert told == [(failing, None), ([], None), (["checkpoints can be written again"], 30), (failing, 30)]
    assert bench.writer.problem == str(FULL)
