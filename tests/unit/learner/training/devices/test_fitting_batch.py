"""The largest batch that fits the memory. The memory is scripted; the steps are a real model's."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diloco.learner.data.opening import open_task
from diloco.learner.training.devices.fitting_batch import USED_SHARE, BatchError, Trial, candidates, fitting_batch
from diloco.learner.training.devices.memory import MemoryExhaustedError
from diloco.model.build import build_model
from tests.support.small_job import small_job


@dataclass
class ScriptedMemory:
    """Memory in which a step takes so much for every sequence."""

    limit_bytes: int
    each_bytes: int
    used: int = 100
    gradients: int = 0
    refuses: int = 1 << 60
    """From this batch size on."""
    tried: list[int] = field(default_factory=list)

    def free_bytes(self) -> int:
        return self.limit_bytes

    def used_bytes(self) -> int:
        return self.used

    def peak_bytes(self, work: Callable[[], None]) -> int:
        work()
        if self.tried[-1] >= self.refuses:
            raise MemoryExhaustedError("none left")
        return self.used + self.gradients + self.each_bytes * self.tried[-1]

    def fit(self, most: int, reserved: int = 0) -> int:
        found = fitting_batch(candidates(most), self, self.tried.append, reserved, self.gradients)
        assert found.needed_bytes == self.needs(found.batch_size, reserved)
        return found.batch_size

    def needs(self, size: int, reserved: int) -> int:
        return self.used + self.gradients + self.each_bytes * size + reserved


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (16, (1, 2, 4, 8, 16)), (12, (1, 3, 6, 12)), (7, (1, 3, 7))]
)
def test_halves_of_the_most_are_tried_from_the_smallest_on(most: int, sizes: tuple[int, ...]) -> None:
    assert candidates(most) == sizes


def test_a_batch_that_finds_no_memory_after_all_is_not_taken() -> None:
    assert ScriptedMemory(limit_bytes=10**6, each_bytes=1, refuses=8).fit(64) == 4


@pytest.mark.parametrize("memory", [ScriptedMemory(1000, 900), ScriptedMemory(10**6, 1, refuses=1)])
def test_too_little_memory_for_any_is_one_line(memory: ScriptedMemory) -> None:
    with pytest.raises(BatchError, match=r"^regions\[\]\.pools\[\]\.batchSize: Auto finds no batch: 1 seq") as told:
        memory.fit(8)
    assert "\n" not in str(told.value)


MEMORIES = st.builds(
    ScriptedMemory,
    limit_bytes=st.integers(1, 10**12),
    each_bytes=st.integers(0, 10**9),
    used=st.integers(0, 10**11),
    gradients=st.integers(0, 10**10),
)


@given(memory=MEMORIES, reserved=st.integers(0, 10**11), most=st.integers(1, 65_536))
def test_it_fits_and_the_next_larger_would_not(memory: ScriptedMemory, reserved: int, most: int) -> None:
    free = USED_SHARE * memory.limit_bytes
    try:
        found = memory.fit(most, reserved)
    except BatchError:
        assert memory.needs(1, reserved) > free
        assert memory.tried == [1]
        return
    assert max(memory.tried) == found
    assert memory.needs(found, reserved) <= free
    larger = [size for size in candidates(most) if size > found]
    assert not larger or memory.needs(larger[0], reserved) > free


def test_a_trial_leaves_the_model_and_its_random_numbers_as_they_were() -> None:
    job = small_job()
    module = build_model(job).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    numbers = torch.get_rng_state()
    trial = Trial(module, open_task(job), job.training, torch.device("cpu"))
    trial.step(3)
    assert any(parameter.grad is not None for parameter in module.parameters())
    trial.end()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
