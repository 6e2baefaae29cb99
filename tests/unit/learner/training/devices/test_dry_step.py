"""A step that is not made tells the memory of one that is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from diloco.learner.training.block_passes import checkpoint_blocks
from diloco.learner.training.devices.dry_step import activation_bytes
from diloco.model import ModelError
from diloco.model.build import blank_model, build_model
from diloco.model.logits import cross_entropy, logits_of
from diloco.spec import JobSpec
from diloco.spec.training import ActivationCheckpointing, Precision
from tests.support.huggingface import write_model
from tests.support.model_parts import Chain, Sometimes
from tests.support.small_job import small_job

SEQUENCES, LENGTH = 4, 64


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None


def really_held(module: nn.Module, precision: Precision) -> int:
    """The most bytes that torch's allocator gave out in a forward and a backward pass, without gradients kept."""
    for one in module.parameters():
        one.register_post_accumulate_grad_hook(_drop)  # type: ignore[no-untyped-call]  # torch's
    tokens = torch.zeros(SEQUENCES, LENGTH, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "BF16"):
            loss = cross_entropy(logits_of(module, tokens), tokens)
        torch.autograd.backward([loss])
    most = now = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def _llama(folder: Path) -> dict[str, Any]:
    return {"model": {"huggingface": {"path": str(write_model(folder))}}}


def _builtin(_: Path) -> dict[str, Any]:
    return {"model": {"builtin": {"preset": "nano"}}}


def _job(precision: Precision, how: ActivationCheckpointing, **model: Any) -> JobSpec:
    job = small_job(**model)
    changes = {"precision": precision, "activation_checkpointing": how, "sequence_length": LENGTH}
    return job.model_copy(update={"training": job.training.model_copy(update=changes)})


@pytest.mark.parametrize("kind", [_builtin, _llama])
@pytest.mark.parametrize("precision", ["F32", "BF16"])
@pytest.mark.parametrize("how", ["None", "Selective", "Full"])
def test_a_step_that_is_not_made_holds_what_one_holds_that_is(
    tmp_path: Path, kind: Callable[[Path], dict[str, Any]], precision: Precision, how: ActivationCheckpointing
) -> None:
    job = _job(precision, how, **kind(tmp_path))
    module = build_model(job)
    checkpoint_blocks(module, how)
    told = activation_bytes(blank_model(job), job.training, SEQUENCES, parted=False)
    assert told == pytest.approx(really_held(module, precision), rel=0.12)


def test_parameters_that_fsdp_gathers_in_bf16_are_not_copied() -> None:
    job = _job("Auto", "None")
    told = [activation_bytes(blank_model(job), job.training, SEQUENCES, parted=parted) for parted in (False, True)]
    matrices = sum(one.numel() for one in blank_model(job).parameters() if one.dim() == 2)
    assert told[0] - told[1] > 2 * matrices  # activations between layers are in BF16 too


def test_a_model_that_looks_at_values_is_one_line() -> None:
    job = _job("F32", "None")
    with pytest.raises(ModelError, match=r"^model: a pass without values raised "):
        activation_bytes(Chain(Sometimes()), job.training, SEQUENCES, parted=False)
