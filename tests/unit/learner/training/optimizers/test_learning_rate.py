import pytest

from diloco.learner.training.optimizers.optimizer import learning_rates
from diloco.spec.training import InnerOptimizer, MuonOptions

OPTIONS = InnerOptimizer(learning_rate=1.0, warmup_steps=4, final_fraction=0.1)
MUON = OPTIONS.model_copy(update={"type": "Muon", "muon": MuonOptions(learning_rate=4.0)})
LINEAR = OPTIONS.model_copy(update={"decay": "Linear"})
WSD = OPTIONS.model_copy(update={"decay": "WSD", "decay_fraction": 0.25})
CONSTANT = OPTIONS.model_copy(update={"warmup_steps": 0, "decay": "Constant"})


@pytest.mark.parametrize(
    ("options", "optimizer_steps", "progress", "rate"),
    [
        (OPTIONS, 0, 0.0, 0.25),
        (OPTIONS, 2, 0.0, 0.75),
        (OPTIONS, 3, 0.0, 1.0),
        (OPTIONS, 5, 0.0, 1.0),
        (OPTIONS, 100, 0.5, 0.55),
        (OPTIONS, 100, 1.0, 0.1),
        # Beyond its ends, progress counts as the end.
        (OPTIONS, 100, 1.2, 0.1),
        (OPTIONS, 100, -0.1, 1.0),
        # A learner that joins late warms up to the job's rate.
        (OPTIONS, 0, 0.5, 0.55 / 4),
        (CONSTANT, 0, 0.9, 1.0),
        (LINEAR, 100, 0.0, 1.0),
        (LINEAR, 100, 0.25, 0.775),
        (LINEAR, 100, 1.2, 0.1),
        # Stable up to the last quarter, then down by the root of what is over of it.
        (WSD, 0, 0.0, 0.25),
        (WSD, 100, 0.75, 1.0),
        (WSD, 100, 0.75 + 0.25 / 4, 0.55),
        (WSD, 100, 1.2, 0.1),
    ],
)
def test_it_rises_with_the_optimizers_steps_and_falls_with_progress(
    options: InnerOptimizer, optimizer_steps: int, progress: float, rate: float
) -> None:
    assert learning_rates(options, optimizer_steps, progress) == pytest.approx({"AdamW": rate})


def test_muon_rises_and_falls_with_adamw_from_its_own_peak() -> None:
    assert learning_rates(MUON, 0, 0.0) == {"AdamW": 0.25, "Muon": 1.0}
    assert learning_rates(MUON, 100, 0.5) == pytest.approx({"AdamW": 0.55, "Muon": 2.2})
    default = learning_rates(InnerOptimizer(type="Muon", warmup_steps=0), 0, 0.0)
    assert default["Muon"] == MuonOptions().learning_rate
