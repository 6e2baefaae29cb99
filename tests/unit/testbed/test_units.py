"""A job that fails in a test ends its processes, and the next test has others."""

import os
import signal
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._subclasses import FakeTensorMode

from diloco.learner.unit.orders import Op, Order
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.model import ModelError
from diloco.spec import JobSpec
from testbed import units
from testbed.units import StartedUnit, unit_of
from tests.support.units import job_of, write_documents

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedUnit]:
    with unit_of(2, tmp_path_factory.mktemp("unit")) as unit:
        yield unit


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return job_of(write_documents(tmp_path / "text"))


def order_what_the_first_does_not_do(_: StartedUnit, trainer: UnitTrainer) -> None:
    trainer._world.tell(Order(Op.CAPTURE, 0))
    raise KeyError


def lose_the_other(two: StartedUnit, trainer: UnitTrainer) -> None:
    two._others[0].kill()
    trainer.step(0.0)


def stop_the_other(two: StartedUnit, trainer: UnitTrainer) -> None:
    os.kill(two._others[0].pid, signal.SIGSTOP)
    trainer.step(0.0)


@pytest.mark.parametrize(
    ("fail", "raised"),
    [(order_what_the_first_does_not_do, KeyError), (lose_the_other, RuntimeError)],
)
def test_after_a_failing_job_the_next_one_trains(
    two: StartedUnit, job: JobSpec, fail: Callable[[StartedUnit, UnitTrainer], None], raised: type[Exception]
) -> None:
    with pytest.raises(raised), two.trainer(job) as trainer:
        fail(two, trainer)
    check_trains(two, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "error", "told"),
    [
        ("build_model", RuntimeError("none"), "none"),
        ("UnitTrainer", RuntimeError("none"), "none"),
        ("UnitTrainer", ModelError("none"), r"of 2 processes, only \[0\] refuse the job"),
    ],
)
def test_after_an_error_of_the_first_process_alone_the_next_job_trains(
    two: StartedUnit, job: JobSpec, place: str, error: Exception, told: str
) -> None:
    with (
        patch.object(units, place, side_effect=error),
        pytest.raises(RuntimeError, match=told),
        two.trainer(job),
    ):
        pass
    check_trains(two, job)


@pytest.mark.slow
def test_a_process_that_hangs_is_not_waited_for_until_the_test_is_ended(two: StartedUnit, job: JobSpec) -> None:
    two.end()
    with (
        patch.object(units, "_LIMIT", timedelta(seconds=10)),
        pytest.raises(RuntimeError, match="Timed out waiting 10000ms"),
        two.trainer(job) as trainer,
    ):
        stop_the_other(two, trainer)
    check_trains(two, job)


def test_tensors_are_counted_beside_a_weak_reference_to_what_is_gone() -> None:
    gone = torch.nn.Identity()
    dead = weakref.proxy(gone)
    del gone
    tensor = torch.zeros(1 << 20)
    assert units.own_bytes() >= tensor.nbytes
    del dead


def test_tensors_without_memory_are_not_counted() -> None:
    before = units.own_bytes()
    with FakeTensorMode():
        fake = torch.zeros(1 << 20)
    meta = torch.zeros(1 << 20, device="meta")
    assert units.own_bytes() - before < fake.nbytes == meta.nbytes


def check_trains(unit: StartedUnit, job: JobSpec) -> None:
    with unit.trainer(job) as trainer:
        assert trainer.step(0.0).loss < 10
