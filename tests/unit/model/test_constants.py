"""Buffers and frozen parameters: what training changes is refused, and what it does not is part of the digest."""

import pytest
import torch

from diloco.model import ModelError, build_model
from diloco.spec import JobSpec
from support.small_job import small_job


def job(name: str, seed: int = 0, **arguments: object) -> JobSpec:
    model = {"entrypoint": f"support.models_with_buffers:{name}", "arguments": arguments}
    spec = small_job(model=model, sync={"fragments": 1})
    return spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})


@pytest.mark.parametrize(
    ("spec", "buffer"),
    [
        (job("batch_norm"), "norm.running_mean"),
        (job("instance_norm"), "norm.running_mean"),
        (job("spectral_norm"), "middle.parametrizations.weight.0._u"),
        (job("average", manner="in place"), "average"),
        (job("average", manner="assigned"), "average"),
        (job("average", persistent=False), "average"),
        (job("counter"), "steps"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_buffer_that_training_changes_is_refused_by_name(spec: JobSpec, buffer: str) -> None:
    with pytest.raises(ModelError, match=rf"^model\.entrypoint: training changes buffer {buffer}, .*; use") as raised:
        build_model(spec)
    assert "\n" not in str(raised.value)


def test_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match="the model has extra state, which is not synchronized; use buffers"):
        build_model(job("extra_state"))


@pytest.mark.parametrize("name", ["float_mask", "whole_numbers", "bool_mask", "bf16_table", "growing_cache"])
def test_a_buffer_that_stays_as_it_is_is_let_pass(name: str) -> None:
    model = build_model(job(name))
    assert next(model.buffers(), None) is not None
    assert model.training


def test_the_look_at_a_model_in_training_draws_nothing_from_others() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build_model(job("float_mask"))
    assert torch.equal(torch.get_rng_state(), before)
