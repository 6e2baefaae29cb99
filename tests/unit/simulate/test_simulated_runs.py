from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.core.account.time_class import TimeClass
from diloco.simulate import (
    Cut,
    Kill,
    Link,
    Outcome,
    Profile,
    Scenario,
    SimulationError,
    simulate,
)
from tests.support.small_job import named_job, small_job, write_text

STEP_TOKENS = 4 * 16
STEPS = 60
SYNC = {"fragments": 6, "interval": 6, "outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}}
ADAMW = {"learningRate": 3e-3, "warmupSteps": 4}
LEARNERS = 3
Run = Callable[..., Outcome]
FIRST, SECOND, THIRD, FOURTH = (f"here/cpu/{index}" for index in range(LEARNERS + 1))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    text = write_text(tmp_path)

    def simulated(
        scenario: Scenario | None = None, optimizer: dict[str, Any] = ADAMW, *, learners: int = LEARNERS, **sync: Any
    ) -> Outcome:
        training = {
            "tokens": STEPS * learners * STEP_TOKENS,
            "sequenceLength": 16,
            "batchSize": 4,
            "optimizer": optimizer,
            "evaluation": {"sequences": 6},
            "checkpointEverySteps": 10,
        }
        spec = small_job(text, learners, training=training, sync=SYNC | sync)
        return simulate(named_job("simulated", spec), scenario or Scenario())

    return simulated


def same_bits(one: Outcome, other: Outcome) -> bool:
    return all(a.equal(b) for a, b in zip(one.parameters, other.parameters, strict=True))


def learner(outcome: Outcome, name: str) -> Any:
    return next(view for view in outcome.view.learners if view.id == name)


@pytest.mark.parametrize("downlink", [pytest.param("F32", marks=pytest.mark.slow), "Int8"])
def test_a_run_merges_its_budget_and_is_the_same_to_the_bit_again(run: Run, downlink: str) -> None:
    faults = (Kill(FIRST, 7.3), Cut(SECOND, 11.0, 4.0))
    one, other = (run(Scenario(faults=faults, seed=3), downlink=downlink) for _ in range(2))
    assert one.view.complete
    assert one.view.merged_tokens >= STEPS * LEARNERS * STEP_TOKENS
    assert one.counts.merges == one.view.syncer_step > 0
    assert (one.virtual_seconds, one.view) == (other.virtual_seconds, other.view)
    assert one.loss == other.loss < 0.8 * one.loss_start
    assert same_bits(one, other)


@pytest.mark.slow
def test_a_link_too_thin_for_whole_fragments_carries_updates(run: Run) -> None:
    thin = Scenario(default=Profile(link=Link(0.01, 4e4)))
    whole, updates = run(thin, compression="Int8"), run(thin, compression="Int8", downlink="Int8")
    assert updates.virtual_seconds < whole.virtual_seconds
    merged = [sum(learner(outcome, name).merged_tokens for name in (FIRST, SECOND)) for outcome in (whole, updates)]
    trained = [sum(learner(outcome, name).tokens for name in (FIRST, SECOND)) for outcome in (whole, updates)]
    assert merged[1] / trained[1] > merged[0] / trained[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(),
        Scenario({THIRD: Profile(step_seconds=2.5)}, deadline_seconds=500.0),
        Scenario(faults=(Cut(THIRD, 8.0, 15.0),)),
        Scenario(faults=(Kill(THIRD, 8.0, 15.0),)),
        Scenario({name: Profile(start_seconds=12.0) for name in (SECOND, THIRD, FOURTH)}),
        Scenario(faults=tuple(Cut(name, 8.0, 15.0) for name in (SECOND, THIRD, FOURTH))),
    ],
    ids=["equal", "one at a fifth", "one cut off", "one restarted", "one alone first", "one alone for a while"],
)
def test_no_honest_learner_is_left_out(run: Run, scenario: Scenario) -> None:
    outcome = run(scenario, learners=4)
    assert outcome.view.complete
    assert {view.id: view.left_out for view in outcome.view.learners} == dict.fromkeys(
        (FIRST, SECOND, THIRD, FOURTH), 0
    )


@pytest.mark.slow
def test_another_seed_of_the_scenario_is_another_course(run: Run) -> None:
    assert run(Scenario(seed=0)).view != run(Scenario(seed=1)).view


@pytest.mark.slow
def test_lock_step_waits_for_the_slowest_and_decoupled_training_does_not(run: Run) -> None:
    slow = Scenario({THIRD: Profile(step_seconds=1.5)}, deadline_seconds=500.0)
    lock_step, decoupled = run(slow, quorum=LEARNERS, maxStalenessSteps=8), run(slow)
    assert lock_step.counts.members_per_merge == LEARNERS
    waited = learner(lock_step, FIRST)
    assert waited.time_seconds[TimeClass.WAITING] > 0.4 * waited.allotted_seconds
    assert learner(decoupled, FIRST).time_seconds[TimeClass.WAITING] == 0.0
    assert decoupled.virtual_seconds < 0.7 * lock_step.virtual_seconds


@pytest.mark.slow
def test_a_slow_learner_brings_less_and_is_still_merged(run: Run) -> None:
    outcome = run(Scenario({THIRD: Profile(step_seconds=1.0)}))
    assert 0 < learner(outcome, THIRD).merged_tokens < 0.7 * learner(outcome, FIRST).merged_tokens


def test_a_killed_learner_resumes_from_its_checkpoint_while_others_train(run: Run) -> None:
    outcome = run(Scenario(faults=(Kill(FIRST, 10.2, restart_after_seconds=3.0),)))
    killed = learner(outcome, FIRST)
    assert killed.restarts == 1
    assert killed.merged_tokens > 0
    assert learner(outcome, SECOND).steps > killed.steps
    assert learner(outcome, SECOND).time_seconds[TimeClass.WAITING] == 0.0


@pytest.mark.slow
def test_a_learner_that_never_comes_back_does_not_stop_the_job(run: Run) -> None:
    outcome = run(Scenario(faults=(Kill(FIRST, 5.0, restart_after_seconds=None),)))
    assert outcome.view.complete
    assert learner(outcome, FIRST).state == "Absent"


def test_a_cut_link_costs_no_restart_and_no_steps(run: Run) -> None:
    outcome = run(Scenario(faults=(Cut(FIRST, 10.2, seconds=3.0),)))
    cut, other = learner(outcome, FIRST), learner(outcome, SECOND)
    assert cut.restarts == 0
    assert abs(cut.steps - other.steps) <= 3
    assert cut.merged_tokens < other.merged_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    [
        {"compression": "Int4"},
        {"compression": "Int4", "errorFeedback": False},
        {"compression": "None", "merge": "Mean"},
        {"tokenWeights": False},
        {"anchor": "Current", "maxVersionLag": 2},
        {"outerOptimizer": {"learningRate": 0.7, "momentum": 0.5}},
    ],
    ids=lambda sync: ",".join(f"{name}={value}" for name, value in sync.items()),
)
def test_every_choice_of_the_algorithm_trains_through_faults(run: Run, sync: dict[str, Any]) -> None:
    faults = (Kill(FIRST, 7.3, restart_after_seconds=2.0), Cut(SECOND, 11.0, seconds=4.0))
    outcome = run(Scenario({THIRD: Profile(step_seconds=1.0)}, faults=faults), **sync)
    assert outcome.loss < 0.9 * outcome.loss_start
    assert all(torch.isfinite(values).all() for values in outcome.parameters)


@pytest.mark.slow
def test_muon_trains_through_faults_to_the_same_bits_and_lower_than_adamw(run: Run) -> None:
    faults = Scenario(faults=(Kill(FIRST, 15.2, restart_after_seconds=2.0), Cut(SECOND, 11.0, seconds=4.0)))
    muon = ADAMW | {"type": "Muon", "muon": {"learningRate": 0.02}}
    one, other = run(faults, muon), run(faults, muon)
    assert same_bits(one, other)
    assert one.loss < 0.8 * one.loss_start
    assert one.loss < run(faults).loss
    assert learner(one, FIRST).restarts == 1


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"errorFeedback": False}, {"downlink": "Int8"}], ids=str)
def test_a_choice_changes_the_course_of_a_run(run: Run, change: dict[str, Any]) -> None:
    assert not same_bits(run(compression="Int4"), run(compression="Int4", **change))


def test_a_run_without_learners_left_ends_with_one_line(run: Run) -> None:
    dead = tuple(Kill(name, 3.0, restart_after_seconds=None) for name in (FIRST, SECOND, THIRD))
    with pytest.raises(SimulationError, match=r"had not finished after .* of 11520 tokens merged: no learner is left"):
        run(Scenario(faults=dead))


def test_a_run_that_takes_too_long_is_given_up(run: Run) -> None:
    with pytest.raises(SimulationError, match=r"had not finished after 10 virtual seconds.*: the scenario's deadline"):
        run(Scenario(deadline_seconds=10.0))
