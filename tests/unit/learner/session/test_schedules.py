"""Learning-rate schedules of a loop go on after a restart as without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Optimizer, lr_scheduler

from diloco.learner.training.fragment_trainer import TrainerState
from tests.support import own_loops
from tests.support.own_loops import Stage

SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "cosine": lambda made: lr_scheduler.CosineAnnealingLR(made, 20),
    "step": lambda made: lr_scheduler.StepLR(made, 3),
    "linear": lambda made: lr_scheduler.LinearLR(made, 1.0, 0.0, 20),
    "lambda": lambda made: lr_scheduler.LambdaLR(made, lambda step: 1 - step / 20),
    "one cycle": lambda made: lr_scheduler.OneCycleLR(made, 1.0, 20),
    "plateau": lambda made: lr_scheduler.ReduceLROnPlateau(made, patience=2),
    "several steps": lambda made: lr_scheduler.MultiStepLR(made, [3, 5, 5, 9]),
    "warm restarts": lambda made: lr_scheduler.CosineAnnealingWarmRestarts(made, 5),
    "cyclic": lambda made: lr_scheduler.CyclicLR(made, 0.1, 1.0, 4, mode="exp_range", cycle_momentum=False),
    "chained": lambda made: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(made), lr_scheduler.ExponentialLR(made, 0.9)]
    ),
    "one after another": lambda made: lr_scheduler.SequentialLR(
        made, [lr_scheduler.LinearLR(made, 0.1, 1.0, 4), lr_scheduler.MultiStepLR(made, [3, 6])], [4]
    ),
}


def now(trainer: Any) -> tuple[Any, Any]:
    (group,) = trainer._parts.optimizers[0].param_groups
    return group["lr"], group["betas"]


def rates(
    folder: Path, schedule: str, monkeypatch: pytest.MonkeyPatch, *, starts_over: bool = False
) -> list[list[Any]]:
    """Rates and betas of 12 steps: without a restart, and with one after the sixth."""
    monkeypatch.setattr(own_loops, "SCHEDULE", SCHEDULES[schedule])
    whole, first, second = (Stage(folder, "scheduled") for _ in range(3))
    seen: list[list[Any]] = []
    for stage, steps in ((whole, 12), (first, 6), (second, 12)):
        mine: list[Any] = []

        def after(trainer: Any, steps: int = steps, mine: list[Any] = mine) -> bool:
            if starts_over and trainer.steps == 6:
                trainer.start_over()
            mine.append(now(trainer))
            return bool(trainer.steps >= steps)

        stage.after_step = after
        if stage is second:
            state = first.trainer.state()

            def resume(trainer: Any, mine: list[Any] = mine, state: TrainerState = state) -> None:
                trainer.load_state(state)
                mine.append(now(trainer))

            stage.on_begin = resume
        stage.run()
        seen.append(mine)
    return [seen[0], seen[1][:-1] + seen[2]]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_goes_on_after_a_restart(tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = rates(tmp_path, schedule, monkeypatch)
    assert len(set(whole)) > 1
    assert resumed == whole


def test_a_schedule_goes_on_when_the_optimizer_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = rates(tmp_path, "cosine", monkeypatch)
    starting_over, _ = rates(tmp_path, "cosine", monkeypatch, starts_over=True)
    assert starting_over == whole
