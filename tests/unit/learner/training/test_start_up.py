"""What a learner and a syncer do not load when they start, in an interpreter of its own."""

import subprocess
import sys

import pytest

TRAINS = """
import torch
from diloco.learner.training.optimizers.optimizer import NamedOptimizer
from diloco.model.build import build_model
from diloco.spec.training import InnerOptimizer
from tests.support.small_job import small_job
job = small_job()
module = build_model(job)
options = InnerOptimizer.model_validate({"type": "Muon", "muon": {}})
optimizer = NamedOptimizer(module, options)
for step in (1, 2):
    module(torch.zeros((1, 4), dtype=torch.int64)).sum().backward()
    optimizer.step({"AdamW": 0.1, "Muon": 0.1})
optimizer.load_state(optimizer.state(), 2)
optimizer.zero_grad()
"""
LAYS_OUT = """
from diloco.model.build import layout_of_job
from tests.support.small_job import small_job
assert layout_of_job(small_job()).fragments
"""
STARTS = "import diloco.cli.processes, diloco.learner.process, diloco.syncer.process"


def loaded(code: str) -> set[str]:
    """Modules after this code, by name."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(told.stdout.split())


# It takes as long to load as the rest of torch, and 150 MB.
@pytest.mark.parametrize("code", [TRAINS, LAYS_OUT], ids=["a learner's steps", "the syncer's layout"])
def test_torchs_compiler_is_not_loaded(code: str) -> None:
    modules = loaded(code)
    assert "torch.optim" in modules
    assert "torch._dynamo" not in modules


def test_a_process_of_a_job_loads_neither_other_commands_nor_fsdp() -> None:
    modules = loaded(STARTS)
    commands = {name for name in modules if name.startswith("diloco.cli.")}
    assert commands == {"diloco.cli.processes", "diloco.cli.program"}
    assert "torch.distributed.fsdp" not in modules
    assert "torch.distributed.tensor" not in modules
