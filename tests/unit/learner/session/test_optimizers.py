"""Optimizers of a loop, one or several: after a restart they go on to the bit, with the loop's random generators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from tests.support import own_loops
from tests.support.own_loops import Stage


class ListsOfMatrices(torch.optim.Optimizer):
    """Keeps of each parameter a list of matrices, one for each dimension, as SOAP and Shampoo do."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, torch.tensor(0.95)), "name": "lists", "scale": abs})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state |= {"step": 0, "basis": None, "sums": [torch.eye(size) for size in one.shape], "seen": {}}
                state["step"] += 1
                for dimension, held in enumerate(state["sums"]):
                    flat = one.grad.movedim(dimension, 0).flatten(1) if one.dim() > 1 else one.grad[:, None]
                    held.lerp_(flat @ flat.T, 1 - float(group["betas"][1]))
                state["seen"][state["step"]] = (float(one.grad.norm()), state["sums"][0].trace())
                one.sub_(one.grad, alpha=group["lr"] / (1 + float(state["sums"][0].trace())))
        return loss


class Wrapper(torch.optim.Optimizer):
    """As that of accelerate: it has none of what torch's constructor makes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def matrices_and_rest(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    matrices, rest = ([one for one in parameters if (one.dim() == 2) is wanted] for wanted in (True, False))
    return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(rest)]


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "lists of matrices": ListsOfMatrices,
    "two": matrices_and_rest,
    "with a history": lambda those: torch.optim.LBFGS(those, lr=0.1, max_iter=2, history_size=3),
    "without a rate": lambda those: Adafactor(those, warmup_init=True),  # type: ignore[no-untyped-call]
    "wrapped": lambda those: Wrapper(torch.optim.Adam(those, amsgrad=True)),
}


def parameters(stage: Stage) -> list[Tensor]:
    return [one.detach().clone() for one in stage.trainer._module.parameters()]


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loops_optimizers_resume_to_the_bit(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_loops, "OPTIMIZERS", OPTIMIZERS[name])
    whole, first, second = (Stage(tmp_path, "trains_with") for _ in range(3))
    for stage, steps in ((whole, 6), (first, 3)):
        stage.after_step = lambda trainer, steps=steps: trainer.steps >= steps  # type: ignore[misc]
        stage.run()
    store = CheckpointStore(
        tmp_path / "checkpoints", CheckpointIdentity("job", "learner", "digest", first.trainer.optimizer_identity)
    )
    store.save(LearnerCheckpoint(first.trainer.state(), {}))
    loaded = store.load()
    assert loaded is not None

    def restore(trainer: Any) -> None:
        trainer.load_state(loaded.state)
        for fragment in range(2):
            trainer.apply(fragment, 1, first.trainer.capture(fragment)._values)

    second.on_begin, second.after_step = restore, lambda trainer: trainer.steps >= 6
    second.run()
    assert len(second.results) == 3
    assert all(torch.equal(one, other) for one, other in zip(parameters(whole), parameters(second), strict=True))
    assert [one.loss for one in whole.results[3:]] == [one.loss for one in second.results]
