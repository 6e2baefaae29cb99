"""A batch that is read ahead: the one that is asked for, or none; its errors are those of its step."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diloco.core.dealing.pieces import Piece
from diloco.learner.data import DataError
from diloco.learner.training.prefetch import Numbers, Prefetch
from diloco.learner.training.trainer import InnerTrainer
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

CPU = torch.device("cpu")


def numbers(*of: int) -> Numbers:
    return np.array(of, dtype=np.int64)


class Shelf:
    """Batches, and who has read which."""

    def __init__(self) -> None:
        self.reads: list[tuple[list[int], bool]] = []
        self.ahead = Prefetch(self.read, CPU)

    def read(self, wanted: Numbers) -> Mapping[str, Tensor]:
        self.reads.append((wanted.tolist(), threading.current_thread() is threading.main_thread()))
        if 13 in wanted:
            raise DataError("data: 13 is unreadable")
        return {"inputs": torch.from_numpy(wanted * 10)}


def test_a_batch_is_read_once_and_in_another_thread() -> None:
    shelf = Shelf()
    shelf.ahead.begin(numbers(1, 2))
    assert shelf.ahead.batch(numbers(1, 2))["inputs"].tolist() == [10, 20]
    assert shelf.reads == [([1, 2], False)]


def test_what_is_not_asked_for_is_dropped() -> None:
    shelf = Shelf()
    shelf.ahead.begin(numbers(1, 2))
    for _ in range(2):
        assert shelf.ahead.batch(numbers(5, 6))["inputs"].tolist() == [50, 60]
    assert [wanted for wanted, _ in shelf.reads] == [[1, 2], [5, 6], [5, 6]]
    assert [main for _, main in shelf.reads] == [False, True, True]


def test_an_error_is_raised_by_the_step_whose_batch_it_is() -> None:
    shelf = Shelf()
    shelf.ahead.begin(numbers(13))
    shelf.ahead.wait()
    with pytest.raises(DataError, match="13 is unreadable"):
        shelf.ahead.batch(numbers(13))
    shelf.ahead.begin(numbers(13))
    assert shelf.ahead.batch(numbers(4))["inputs"].tolist() == [40]


def trainer(folder: Path, *, ahead: bool, dealt: int = 400) -> tuple[InnerTrainer, list[list[int]]]:
    """A trainer, and the examples that it reads; ``ahead``: as on a CUDA device."""
    made = trainer_of(small_job(write_text(folder)))
    made._data.sampler.supply = None
    made.hand.put(Piece(0, 0, dealt))
    read: list[list[int]] = []
    task = made._inner._task
    plain = task.batch

    def batch(wanted: Numbers) -> Mapping[str, Tensor]:
        read.append(wanted.tolist())
        return plain(wanted)

    if ahead:
        made._inner._ahead = Prefetch(batch, CPU)
    else:
        task.batch = batch  # type: ignore[method-assign, assignment]
    return made, read


def results(made: InnerTrainer, steps: int) -> list[Any]:
    found = [made.step(0.0) for _ in range(steps)]
    return [(one.loss, one.grad_norm, one.tokens) for one in found] + [made.steps, made.data_position]


def test_reading_ahead_changes_no_step_and_takes_nothing(tmp_path: Path) -> None:
    (plain, plain_read), (ahead, ahead_read) = (trainer(tmp_path, ahead=ahead) for ahead in (False, True))
    assert results(plain, 6) == results(ahead, 6)
    ahead._inner._ahead.wait()  # type: ignore[union-attr]
    assert ahead_read[:6] == plain_read
    assert (len(plain_read), len(ahead_read), ahead.data_position) == (6, 7, 24)


def test_a_restarted_learner_takes_what_was_only_read_ahead(tmp_path: Path) -> None:
    (whole, _), (first, _), (second, read) = (trainer(tmp_path, ahead=ahead) for ahead in (False, True, True))
    wanted = [whole.step(0.0).loss for _ in range(6)]
    made = [first.step(0.0).loss for _ in range(3)]
    second.load_state(first.state())
    for fragment in range(6):
        second.apply(fragment, 1, first.capture(fragment)._values)
    made += [second.step(0.0).loss for _ in range(3)]
    assert made == wanted
    assert read[0] == whole._data.sampler.numbers(12, 16).tolist()


def test_what_is_not_dealt_is_not_read_and_what_is_replaced_is_not_used(tmp_path: Path) -> None:
    made, read = trainer(tmp_path, ahead=True, dealt=8)
    made.step(0.0)
    made._inner._ahead.wait()  # type: ignore[union-attr]
    assert len(read) == 2
    made.hand.put(Piece(20, 100, 4))
    assert made.jump()
    made.step(0.0)
    assert read[2] == made._data.sampler.numbers(100, 104).tolist()
    assert (len(read), made.data_position) == (3, 24)
