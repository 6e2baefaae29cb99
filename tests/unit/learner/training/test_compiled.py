"""training.compile: the blocks are compiled, and nothing else changes."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from diloco.learner.training import compiled
from diloco.model import ModelError
from diloco.spec import JobSpec
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

pytestmark = [
    pytest.mark.slow,
    # torch looks at the gradients of what it traces.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch.compiler.reset()


def _compiled(job: JobSpec) -> JobSpec:
    return job.model_copy(update={"training": job.training.model_copy(update={"compile": True})})


def test_a_compiled_model_trains_as_another_and_is_compiled_once(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    fast, plain = trainer_of(_compiled(small_job(text))), trainer_of(small_job(text))
    assert fast.optimizer_identity == plain.optimizer_identity
    frames = dict(counters["frames"])
    assert frames["ok"] > 0
    for version in range(1, 10):
        assert fast.step(0.0).loss == pytest.approx(plain.step(0.0).loss, rel=1e-5)
        for one in (fast, plain):
            one.apply(0, version, one.capture(0)._values)
        assert fast.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)
    assert dict(counters["frames"]) == frames


def test_a_model_that_cannot_be_compiled_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/no/compiler",))
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ModelError, match=r"^training.compile: torch cannot compile the model \(.+\); use false$"):
        compiled.compile_blocks(module, lambda: module(torch.ones(3, 2)).sum().backward())
