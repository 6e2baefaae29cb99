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
STARTS = "import diloco.cli.processes, diloco.learner.process.learner_process, diloco.syncer.process"


def loaded(*codes: str) -> list[set[str]]:
    """Modules after each of these, which run one after the other, by name."""
    program = "".join(f"{code}\nimport sys; print(*sys.modules)\n" for code in codes)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return [set(line.split()) for line in told.splitlines()]


@pytest.mark.slow
def test_a_process_of_a_job_loads_no_other_commands_fsdp_or_compiler() -> None:
    begun, *later = loaded(STARTS, LAYS_OUT, TRAINS)
    commands = {name for name in begun if name.startswith("diloco.cli.")}
    assert commands == {"diloco.cli.processes", "diloco.cli.program"}
    assert "torch.distributed.fsdp" not in begun
    assert "torch.distributed.tensor" not in begun
    # It takes as long to load as the rest of torch, and 150 MB.
    assert not any("torch._dynamo" in one for one in later)
    assert "torch.optim" in later[-1]
