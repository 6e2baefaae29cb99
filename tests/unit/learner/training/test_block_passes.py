"""training.activationCheckpointing and training.compile: memory and time change, and nothing else."""

import shutil
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from diloco.learner.training.block_passes import checkpoint_blocks, prepare_blocks
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.model.build import build_model
from diloco.spec import JobSpec
from diloco.spec.training import ActivationCheckpointing
from tests.support.huggingface import write_model
from tests.support.model_parts import Chain, linear
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

MODES: tuple[ActivationCheckpointing, ...] = ("None", "Selective", "Full")


def compiling(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that runs torch's compiler."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.timeout(900),  # a minute of compiling, and several on a busy machine
        # torch looks at the gradients of what it traces.
        pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
        pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
        pytest.mark.usefixtures("_own_cache"),
    ):
        test = mark(test)
    return test


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch.compiler.reset()


def _with(job: JobSpec, **training: Any) -> JobSpec:
    return job.model_copy(update={"training": job.training.model_copy(update=training)})


def _losses(trainer: InnerTrainer, steps: int = 3) -> list[float]:
    return [trainer.step(0.0).loss for _ in range(steps)]


def _builtin(_: Path) -> dict[str, Any]:
    return {}


def _llama(folder: Path) -> dict[str, Any]:
    return {"model": {"huggingface": {"path": str(write_model(folder / "llama"))}}}


def _adapted(folder: Path) -> dict[str, Any]:
    path = str(write_model(folder / "qwen3", "qwen3"))
    adapter = {"rank": 2, "dropout": 0.5, "targets": ["q_proj", "down_proj"]}
    return {"model": {"huggingface": {"path": path, "weights": True}, "adapter": adapter}}


def _own(_: Path) -> dict[str, Any]:
    return {"model": {"entrypoint": "tests.unit.learner.training.test_block_passes:dropping"}}


def dropping() -> nn.Module:
    """A user's model, with dropout and ReLU in place."""
    return Chain(*(nn.Sequential(linear(), nn.ReLU(inplace=True), nn.Dropout(0.5)) for _ in range(2)))


@pytest.mark.parametrize("kind", [_builtin, _llama, _adapted, _own])
@pytest.mark.parametrize("precision", ["F32", "BF16"])
def test_blocks_that_compute_again_train_to_the_same_bits(
    tmp_path: Path, kind: Callable[[Path], dict[str, Any]], precision: str
) -> None:
    job = _with(small_job(write_text(tmp_path), **kind(tmp_path)), precision=precision)
    trainers = {mode: trainer_of(_with(job, activation_checkpointing=mode)) for mode in MODES}
    assert len({one.optimizer_identity for one in trainers.values()}) == 1
    losses = {mode: _losses(one) for mode, one in trainers.items()}
    assert losses["Selective"] == losses["None"]
    assert losses["Full"] == losses["None"]
    assert len({one.evaluate() for one in trainers.values()}) == 1


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def _products(mode: ActivationCheckpointing) -> tuple[int, int, Counter[str]]:
    """Layers, matrix products of a forward and backward pass, and the operators of the latter."""
    module = build_model(small_job())
    checkpoint_blocks(module, mode)
    checkpoint_blocks(module, mode)
    loss = module(torch.arange(16)[None]).logsumexp(-1).sum()
    with _Operators() as operators:
        loss.backward()
    return len(module.blocks), operators.seen["mm"], operators.seen  # type: ignore[arg-type]  # a list of modules


def test_selective_computes_half_the_products_again_and_no_attention() -> None:
    layers, plain, _ = _products("None")
    _, some, of_some = _products("Selective")
    _, most, of_most = _products("Full")
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    # A block has six products; the last of them, which nothing in the backward pass needs, is not computed again.
    assert some - plain == layers * 2
    assert most - plain == layers * 5
    assert (of_some[attention], of_most[attention]) == (0, layers)


def test_a_model_without_blocks_is_one_line() -> None:
    with pytest.raises(
        ModelError,
        match=r"^training.activationCheckpointing: Full needs a model with blocks in an nn.ModuleList or "
        r"nn.Sequential; use None$",
    ):
        checkpoint_blocks(linear(), "Full")


class _Wandering(nn.Module):
    """Gives other shapes each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        made: Tensor = self.layer(torch.cat([x] * self.calls)).exp()
        return made[: len(x)]


def test_a_block_that_cannot_be_computed_again_is_one_line() -> None:
    module = nn.Sequential(linear(), _Wandering())
    checkpoint_blocks(module, "Full")
    training = _with(small_job(), activation_checkpointing="Full").training
    with pytest.raises(
        ModelError, match=r"^training.activationCheckpointing: torch cannot compute a block again \(.+\); use None$"
    ):
        prepare_blocks(module, training, lambda: module(torch.ones(3, 8)).sum().backward())


@compiling
@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_model_trains_as_another_and_is_compiled_once(tmp_path: Path, mode: ActivationCheckpointing) -> None:
    job = small_job(write_text(tmp_path))
    fast = trainer_of(_with(job, compile=True, activation_checkpointing=mode))
    plain = trainer_of(job)
    assert fast.optimizer_identity == plain.optimizer_identity
    frames = dict(counters["frames"])
    assert frames["ok"] > 0
    for version in range(1, 10):
        assert fast.step(0.0).loss == pytest.approx(plain.step(0.0).loss, rel=1e-5)
        for one in (fast, plain):
            one.apply(0, version, one.capture(0)._values)
        assert fast.evaluate() == pytest.approx(plain.evaluate(), rel=1e-5)
    assert dict(counters["frames"]) == frames


@compiling
def test_a_model_that_cannot_be_compiled_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/no/compiler",))
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    training = _with(small_job(), compile=True).training
    with pytest.raises(ModelError, match=r"^training.compile: torch cannot compile the model \(.+\); use false$"):
        prepare_blocks(module, training, lambda: module(torch.ones(3, 2)).sum().backward())


@pytest.mark.parametrize("how", ["Selective", "Full"])
def test_a_copy_of_a_model_computes_with_its_own_parameters(how: ActivationCheckpointing) -> None:
    module = build_model(small_job())
    checkpoint_blocks(module, how)
    copied, tokens = deepcopy(module), torch.arange(16)[None]
    with torch.no_grad():
        for one in copied.get_submodule("blocks").parameters():
            one.zero_()
    assert not torch.equal(copied(tokens), module(tokens))
    copied(tokens).sum().backward()
    assert all(one.grad is None for one in module.parameters())
