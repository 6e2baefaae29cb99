"""What a run of the benchmark of quality is, what it is kept under, and the means of the last models."""

import dataclasses

import pytest
import torch

from diloco.core.engine.events import Merged
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import OuterChoice
from support.quality.averages import EVERY_STEPS, LastSteps, LastVersions
from support.quality.experiments import EXPERIMENTS, due_of
from support.quality.runs import Setting
from support.quality.variants import CHANGES, CHOICE_SEED, CHOSEN, VARIANTS, Rates

SETTING = Setting("muon_h6", "B", 1600, 0, Rates(11.3e-3, 16e-3, 1.0, 0.0))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_an_experiment_makes_another_job(change: str) -> None:
    changed = dataclasses.replace(SETTING, variant=f"muon_h6_{change}")
    DiLoCoJob.model_validate(changed.manifest(1000))
    assert changed.key() != SETTING.key()


def test_the_rates_of_the_default_are_those_of_a_manifest_without_any() -> None:
    defaults = {cell: rates for cell, rates in CHOSEN.items() if cell[2] == "by_default"}
    assert defaults
    for (workload, steps, variant), rates in defaults.items():
        setting = Setting(variant, workload, steps, 0, rates)
        manifest = setting.manifest(setting.tokens)
        del manifest["spec"]["sync"]["outerOptimizer"]
        given = manifest["spec"]["training"]["optimizer"].pop("learningRate")
        spec = DiLoCoJob.model_validate(manifest).spec
        chosen = OuterChoice.of(spec).optimizer
        assert (chosen.learning_rate, chosen.momentum) == (rates.outer_learning_rate, rates.momentum)
        assert spec.training.optimizer.learning_rate == given


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_what_it_lacks(name: str) -> None:
    experiment = EXPERIMENTS[name]
    due = due_of(experiment, {experiment.base: {}})
    assert due == list(experiment.tried)
    assert {setting.seed for setting in (experiment.base, *due)} == {CHOICE_SEED} or not due
    assert {setting.variant for setting in due} <= VARIANTS.keys()
    assert len({setting.key() for setting in (experiment.base, *due)}) == len(due) + 1


class Model:
    """Of one fragment, at the value that was merged last."""

    value = 0.0

    def values(self, _fragment: int) -> torch.Tensor:
        return torch.tensor([self.value])


def test_the_mean_is_of_the_last_versions_of_each_fragment() -> None:
    model = Model()
    last = LastVersions(model, merges=50)  # type: ignore[arg-type]  # it only reads values
    for version in range(1, 51):
        model.value = float(version)
        last.passed(Merged(0, version, "", 0.0), (), 0.0)
    assert last.losses(lambda values: values[0].item()) == {"0.03": 49.5, "0.06": 49.0, "0.12": 47.5, "0.25": 44.5}


def test_the_mean_of_data_parallel_training_is_of_every_eighth_model() -> None:
    last = LastSteps(400)
    for step in range(1, 401):
        last.watch(lambda step=step: torch.tensor([float(step)]))  # type: ignore[misc]  # the default binds it
    assert EVERY_STEPS == 8
    assert last.losses(torch.Tensor.item) == {"0.03": 396.0, "0.06": 392.0, "0.12": 380.0, "0.25": 356.0}
