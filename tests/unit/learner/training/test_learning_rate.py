import pytest

from diloco.learner.training.optimizer import learning_rates
from diloco.spec.training import InnerOptimizer, MuonOptions

OPTIONS = InnerOptimizer(learning_rate=1.0, warmup_steps=4, final_fraction=0.1)
MUON = OPTIONS.model_copy(update={"kind": "Muon", "muon": MuonOptions(learning_rate=4.0)})


def learning_rate(options: InnerOptimizer, optimizer_steps: int, progress: float) -> float:
    (rate,) = learning_rates(options, optimizer_steps, progress).values()
    return rate


def test_it_rises_with_the_optimizers_own_steps() -> None:
    assert [learning_rate(OPTIONS, step, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_it_falls_with_the_jobs_progress_to_its_final_fraction() -> None:
    assert learning_rate(OPTIONS, 100, 0.5) == pytest.approx(0.55)
    assert learning_rate(OPTIONS, 100, 1.0) == pytest.approx(0.1)


def test_progress_beyond_its_ends_is_taken_as_the_ends() -> None:
    assert learning_rate(OPTIONS, 100, 1.2) == pytest.approx(0.1)
    assert learning_rate(OPTIONS, 100, -0.1) == 1.0


def test_a_learner_that_joins_late_warms_up_to_the_jobs_rate() -> None:
    assert learning_rate(OPTIONS, 0, 0.5) == pytest.approx(0.55 / 4)


def test_constant_without_warmup_is_the_peak() -> None:
    options = InnerOptimizer(learning_rate=1.0, warmup_steps=0, decay="Constant")
    assert learning_rate(options, 0, 0.9) == 1.0


def test_muon_rises_and_falls_with_adamw_from_its_own_peak() -> None:
    assert learning_rates(MUON, 0, 0.0) == {"AdamW": 0.25, "Muon": 1.0}
    assert learning_rates(MUON, 100, 0.0) == {"AdamW": 1.0, "Muon": 4.0}
    assert learning_rates(MUON, 100, 0.5) == pytest.approx({"AdamW": 0.55, "Muon": 2.2})
    assert learning_rates(MUON, 100, 1.0) == pytest.approx({"AdamW": 0.1, "Muon": 0.4})


def test_muon_without_options_has_its_default_peak() -> None:
    rates = learning_rates(InnerOptimizer(kind="Muon", warmup_steps=0), 0, 0.0)
    assert rates["Muon"] == MuonOptions().learning_rate
