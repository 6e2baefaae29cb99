"""Whether a learner goes on with what an earlier process has left, once it knows which training this is."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.learner.checkpoint import LearnerCheckpoint
from diloco.learner.exchange.link import Position
from diloco.learner.exchange.residuals import Residual, Residuals
from diloco.learner.resume import Resume
from diloco.learner.training.fragment_trainer import TrainerState
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

OURS, OTHER = "0011223344556677", "8899aabbccddeeff"


@pytest.fixture
def checkpoint(tmp_path: Path) -> LearnerCheckpoint:
    """After three steps, in training `OURS`."""
    before = trainer_of(small_job(write_text(tmp_path)))
    for _ in range(3):
        before.step(0.0)
    return LearnerCheckpoint(before.state(), {1: Residual(3, torch.ones(4))}, OURS)


def of(checkpoint: LearnerCheckpoint, **changes: Any) -> LearnerCheckpoint:
    """The same with another state of the trainer."""
    state = checkpoint.state
    fields = {name: getattr(state, name) for name in ("tensors", "optimizer_steps", "steps", "tokens", "data_position")}
    return LearnerCheckpoint(TrainerState(**fields | changes), checkpoint.residuals, checkpoint.training)


@pytest.mark.parametrize(("theirs", "said"), [(OURS, OURS), (OURS, ""), ("", OURS), ("", "")])
def test_the_state_is_taken_up_bit_for_bit(
    tmp_path: Path, checkpoint: LearnerCheckpoint, theirs: str, said: str
) -> None:
    again, feedback = trainer_of(small_job(write_text(tmp_path))), Residuals()
    own = Resume(again, feedback, LearnerCheckpoint(checkpoint.state, checkpoint.residuals, theirs))
    assert own.position() == Position(3, checkpoint.state.data_position, theirs)
    own.take_up(said)
    state = again.state()
    assert (state.optimizer_steps, state.steps, state.tokens) == (3, 3, checkpoint.state.tokens)
    assert state.tensors.keys() == checkpoint.state.tensors.keys()
    assert all(torch.equal(state.tensors[name], one) for name, one in checkpoint.state.tensors.items())
    assert list(feedback.snapshot()) == [1]
    assert own.position() == Position(3, checkpoint.state.data_position)


def test_that_of_another_training_is_ignored_with_one_line(
    tmp_path: Path, checkpoint: LearnerCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    again, feedback = trainer_of(small_job(write_text(tmp_path))), Residuals()
    own = Resume(again, feedback, checkpoint)
    own.take_up(OTHER)
    own.take_up(OURS)
    state = again.state()
    assert (state.tensors, state.optimizer_steps, state.steps, state.data_position) == ({}, 0, 0, 0)
    assert feedback.snapshot() == {}
    assert own.position() == Position(0, 0)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == (
        f"ignoring its own checkpoint of step 3: it is of training {OURS}, this is training {OTHER}; the inner "
        "optimizer starts anew"
    )


@pytest.mark.parametrize("what", ["unknown", "shape"])
def test_a_state_that_does_not_fit_is_ignored_with_one_line(
    tmp_path: Path, checkpoint: LearnerCheckpoint, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    tensors = dict(checkpoint.state.tensors)
    name = max(tensors)
    value = tensors.pop(name)
    tensors |= {"exp_avg.nobody": value} if what == "unknown" else {name: torch.zeros(*value.shape, 2)}
    again = trainer_of(small_job(write_text(tmp_path)))
    Resume(again, None, of(checkpoint, tensors=tensors)).take_up(OURS)
    assert (again.state().tensors, again.steps) == ({}, 0)
    again.step(0.0)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("ignoring its own checkpoint of step 3: it does not fit the inner optimizer")


def test_other_processes_drop_what_they_have_restored_of_another_training(
    tmp_path: Path, checkpoint: LearnerCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = trainer_of(small_job(write_text(tmp_path)))
    told: list[str] = []
    monkeypatch.setattr(again, "start_over", lambda: told.append("start over"))
    Resume(again, None, checkpoint).take_up(OTHER)
    assert told == ["start over"]


def test_without_one_it_begins_anew(tmp_path: Path) -> None:
    again = trainer_of(small_job(write_text(tmp_path)))
    own = Resume(again, None, None)
    assert own.position() == Position(0, 0)
    own.take_up(OURS)
    assert again.steps == 0
