"""Counts a step of the first of many processes; run with a case as JSON, it prints the figures as JSON.

Tensors are fake and the other processes too, so that no memory for a model is needed. It works with the package of an
earlier commit, if that is first in PYTHONPATH.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from diloco.learner.data.task import LanguageModel
from diloco.learner.training import steps
from diloco.learner.training.state_watch import StateWatch
from diloco.learner.unit.sharding import parted_model
from diloco.model.fragments import trained_parameters
from diloco.spec import JobSpec
from support.step.memory import Memory
from testbed.fake_world import Counted, fake_world

_LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 512,
    },
    "1.2B": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14_336,
    },
    "28B": {
        "hidden_size": 6144,
        "num_hidden_layers": 60,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "intermediate_size": 20_480,
    },
}
"""Llama's of these sizes; of 28B there is none that is published."""


class _Tokens(LanguageModel):
    """Sequences that are never read."""

    def __init__(self, length: int) -> None:
        self.field, self.usual_count, self._length, self._end = "data", length, length, None

    def __len__(self) -> int:
        return 1 << 30

    def batch(self, numbers: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Inputs and targets."""
        shape = len(numbers), self._length
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("inputs", "targets")}

    def check(self, module: nn.Module) -> None:
        """Nothing: there are no values to look at."""


def job_of(case: Mapping[str, Any], folder: Path) -> JobSpec:
    """The case's job, of one learner."""
    (folder / "config.json").write_text(json.dumps({**_LLAMA, **SHAPES[case["shape"]]}))
    ranks, parts = case["ranks"], case.get("micro_batches", 1)
    training = {"tokens": 10**12, "sequenceLength": case["length"], "precision": "BF16", "batchSize": ranks * parts}
    training |= {"microBatchSize": 1, **case.get("training", {})}
    pool = {"name": "gpu", "learners": 1, "processesPerNode": ranks, **case.get("pool", {})}
    return JobSpec.model_validate(
        {
            "model": {"huggingface": {"path": str(folder)}},
            "data": {"text": {}},
            "training": training,
            "regions": [{"name": "here", "pools": [pool]}],
        }
    )


def count(case: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a case's second step, when there are moments."""
    seen, memory, flops, read_before = Counted(), Memory(), FlopCounterMode(display=False), 0
    with tempfile.TemporaryDirectory() as folder:
        spec = job_of(case, Path(folder))
        with (
            fake_world(case["ranks"], torch.device("cpu")) as world,
            FakeTensorMode(allow_non_fake_inputs=True),
            patch.object(StateWatch, "__init__", lambda *_: None),  # it compares values
            patch.object(steps, "prepare_blocks", lambda *_: None, create=True),  # a step in advance
        ):
            parted = parted_model(spec, spec.regions[0].pools[0], world, None)
            batch = spec.training.batch_size
            inner = steps.InnerSteps(spec, parted.module, _Tokens(case["length"]), batch, parted.share)
            parameters = trained_parameters(parted.module)
            memory.track(iter(parameters.values()), "parameters")
            update = inner.optimizer.step

            def step(*arguments: Any, **named: Any) -> Any:
                nonlocal read_before
                read_before = seen.host_reads
                memory.now = "moments"
                with flops:
                    update(*arguments, **named)
                memory.now = "rest"

            numbers = np.arange(batch)
            with patch.object(inner.optimizer, "step", step), memory.watching(), seen:
                _step(inner, numbers, 0)
                seen.reset()
                memory.peak.clear()
                _step(inner, numbers, batch)
    numel = sum(one.numel() for one in parameters.values())
    figures: dict[str, Any] = {"parameters": numel, "host_reads_before_optimizer": read_before}
    figures |= {f"{what}_bytes": sum(each) for what, each in sorted(seen.moved.items())}
    figures |= {f"{what}_calls": len(each) for what, each in sorted(seen.moved.items())}
    figures |= {f"peak_{kind}_bytes": size for kind, size in sorted(memory.peak.items())}
    figures["peak_bytes"] = memory.peak.total()
    figures["optimizer_flops"] = flops.get_total_flops()  # of the latest step
    figures["whole_flops"] = sum(map(_muon_flops, parameters.values())) if figures["optimizer_flops"] else 0
    return figures


def _step(inner: Any, numbers: NDArray[np.int64], began: int) -> None:
    """As on a device that is no CPU; an earlier package has one way."""
    if hasattr(inner, "begin"):
        inner._late = inner.optimizer.skips_on_device  # noqa: SLF001  # what a CPU is not
        inner.begin(numbers, began, 0.0)
        inner.settle()
    else:
        inner.step(numbers, began, 0.0)


def _muon_flops(parameter: Tensor) -> int:
    """Of all of a parameter's update, if it is a hidden matrix: five steps of three products."""
    if parameter.dim() != 2 or parameter.shape[0] == _LLAMA["vocab_size"]:
        return 0
    less, more = sorted(parameter.shape)
    return 5 * 2 * (2 * less * less * more + less**3)


if __name__ == "__main__":
    print(json.dumps(count(json.loads(sys.argv[1]))))  # for the process that started this one
