"""One run of the quality benchmark: what it is, what its result depends on, and how it is carried out.

The digest of a run's whole configuration, a plain value, names its result in a cache, which says which commit made it.
Rounding that changes moves a loss by less than seeds do, so a change of the code repeats no run. After a change of the
algorithm, delete the lines that it concerns. Other modules combine the results.
"""

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from diloco.learner.data.opening import open_task
from diloco.learner.data.task import JobTask
from diloco.learner.training.trainer import InnerTrainer
from diloco.local.view.time_classes import goodput_of, shares_of
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.simulate import Cut, Kill, Profile, Scenario
from diloco.simulate.training.tensors import tensor_work
from diloco.simulate.world import Simulation, simulate_course
from diloco.spec import DiLoCoJob
from support.faults import faults_every
from support.job import manifest
from support.quality.averages import LastSteps, LastVersions
from support.quality.baselines import alone, data_parallel
from support.quality.changing_interval import interval_of
from support.quality.primal_averaging import averaging
from support.quality.variants import (
    CUT_SECONDS,
    FRAGMENTS,
    HELDOUT_SEQUENCES,
    JITTER,
    LEARNERS,
    RESTART_SECONDS,
    SEQUENCE_TOKENS,
    STEP_SECONDS,
    UNEVEN_SPEEDS,
    VARIANTS,
    WORKLOADS,
    WORLDS,
    Rates,
    Variant,
    Workload,
)

TOKENS_WITHIN = 0.002
"""How near to the budget the trained tokens must come for no better budget to be looked for."""
BUDGETS_TRIED = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    variant: str
    workload: str
    steps: int
    """Inner steps of each of four learners that share the budget evenly."""
    seed: int
    rates: Rates

    @property
    def what(self) -> Variant:
        return VARIANTS[self.variant]

    @property
    def load(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def tokens(self) -> int:
        """What is trained, by all learners."""
        return self.steps * LEARNERS * self.load.step_tokens

    def configuration(self) -> dict[str, Any]:
        """Everything the result depends on but the code, as plain JSON."""
        world = [self.what.world, WORLDS[self.what.world], STEP_SECONDS, JITTER, RESTART_SECONDS, CUT_SECONDS]
        return {
            "kind": self.what.kind,
            "equal": "trained tokens",
            "manifest": self.manifest(self.tokens),
            "world": world,
            "python": platform.python_version(),
        } | {name: value for name in ("primal_average", "change") if (value := getattr(self.what, name)) is not None}

    def manifest(self, tokens: int) -> dict[str, Any]:
        """The job, with a budget of ``tokens`` merged tokens."""
        rates, what = self.rates, self.what
        inner = what.inner
        optimizer: dict[str, Any] = {"learningRate": rates.adamw}
        if rates.muon is not None:
            optimizer |= {"type": "Muon", "muon": {"learningRate": rates.muon, **inner.get("muon", {})}}
        if what.warmup is not None:
            optimizer["warmupSteps"] = round(what.warmup * self.steps)
        training = {
            "tokens": tokens,
            "sequenceLength": SEQUENCE_TOKENS,
            "batchSize": self.load.sequences,
            "seed": self.seed,
            "optimizer": optimizer | {field: value for field, value in inner.items() if field != "muon"},
            "evaluation": {"everyTokens": tokens, "sequences": HELDOUT_SEQUENCES},
        }
        sync: dict[str, Any] = {}
        if what.kind == "decoupled":
            outer = {"learningRate": rates.outer_learning_rate, "momentum": rates.momentum}
            sync = {"fragments": FRAGMENTS, "outerOptimizer": outer, **what.sync}
        model = {"builtin": {"preset": self.load.preset}}
        return manifest("quality", {"sim": what.learners}, training=training, sync=sync, model=model)

    def key(self) -> str:
        """Digest of the configuration."""
        return hashlib.sha256(json.dumps(self.configuration(), sort_keys=True).encode()).hexdigest()


def job_of(setting: Setting, tokens: int) -> DiLoCoJob:
    """Its job. The last version is the model, unless the variant says otherwise: an observer makes the means."""
    plain = setting.manifest(tokens)
    plain["spec"]["sync"].setdefault("averageLast", 0.0)
    return DiLoCoJob.model_validate(plain)


def setting_of(plain: Mapping[str, Any]) -> Setting:
    """What ``dataclasses.asdict`` of a setting came from."""
    return Setting(**{**plain, "rates": Rates(**plain["rates"])})


def scenario_of(setting: Setting, learners: tuple[str, ...]) -> Scenario:
    """The setting's world."""
    everyone = Profile(step_seconds=STEP_SECONDS, jitter=JITTER)
    every_minute = partial(
        faults_every, 60.0, learners=learners, until_seconds=4 * setting.steps * STEP_SECONDS, seed=setting.seed
    )
    match setting.what.world:
        case "faults":
            slow = dataclasses.replace(everyone, step_seconds=2 * STEP_SECONDS)
            kills = every_minute(lambda learner, at_seconds: Kill(learner, at_seconds, RESTART_SECONDS))
            return Scenario({learners[-1]: slow}, everyone, faults=kills, seed=setting.seed)
        case "cuts":
            cuts = every_minute(lambda learner, at_seconds: Cut(learner, at_seconds, CUT_SECONDS))
            return Scenario(default=everyone, faults=cuts, seed=setting.seed)
        case "uneven":
            profiles = {
                learner: dataclasses.replace(everyone, step_seconds=STEP_SECONDS / speed)
                for learner, speed in zip(learners, UNEVEN_SPEEDS, strict=True)
            }
            return Scenario(profiles, everyone, seed=setting.seed)
        case _:
            return Scenario(default=everyone, seed=setting.seed)


_tasks: list[JobTask] = []
"""The corpus of this worker process."""


def _task(job: DiLoCoJob) -> JobTask:
    if not _tasks:
        _tasks.append(open_task(job.spec))
    return _tasks[0]


def run(setting: Setting) -> dict[str, Any]:
    """Carry out one run; the result is plain JSON."""
    torch.set_num_threads(1)
    began = time.process_time()
    job = job_of(setting, setting.tokens)
    task = _task(job)
    with averaging(setting.what.primal_average), interval_of(setting.what.change, setting.steps):
        result = _result(setting, job, task)
    return {**result, "cpu_seconds": time.process_time() - began}


def _result(setting: Setting, job: DiLoCoJob, task: JobTask) -> dict[str, Any]:
    if setting.what.kind == "decoupled":
        return _decoupled(setting, task)
    last = LastSteps(setting.steps)
    done = (alone if setting.what.kind == "alone" else data_parallel)(job, task, last.watch)
    return {
        "loss_start": done.loss_start,
        "loss": done.loss,
        "loss_of_means": last.losses(done.loss_of),
        "trained_tokens": done.trained_tokens,
        "merged_tokens": done.trained_tokens,
        "learner_steps": [done.steps],
    }


def job_of_equal_work(setting: Setting) -> DiLoCoJob:
    """The job whose budget of merged tokens makes it train as many tokens as the setting says.

    The learning rates end with the budget.
    """
    return job_of(setting, _budget(dataclasses.replace(setting, rates=setting.what.start)))


@cache
def _budget(setting: Setting) -> int:
    """Found by counted runs, which take the course of the real one, whatever its rates are."""
    job = job_of(setting, setting.tokens)
    layout = layout_of(build_model(job.spec), job.spec.sync.fragments)
    scenario = scenario_of(setting, job.spec.learner_ids)
    best, nearest = setting.tokens, float("inf")
    budget = setting.tokens
    for _ in range(BUDGETS_TRIED):
        job = job_of(setting, budget)
        trained = simulate_course(job, scenario, layout).view.trained_tokens
        away = abs(trained / setting.tokens - 1)
        if away < nearest:
            best, nearest = budget, away
        if nearest <= TOKENS_WITHIN:
            break
        budget = round(budget * setting.tokens / trained)
    return best


def _decoupled(setting: Setting, task: JobTask) -> dict[str, Any]:
    job = job_of_equal_work(setting)
    layout, work = tensor_work(job.spec, task)
    last = LastVersions(work.model, setting.steps // job.spec.sync.interval)
    course = Simulation(job, scenario_of(setting, job.spec.learner_ids), layout, work, last).complete()
    view = course.view
    trainer = work.new_trainer(job.spec.learner_ids[0])
    assert isinstance(trainer, InnerTrainer)
    return {
        "loss_start": view.evaluations[0].loss,
        "loss": view.evaluations[-1].loss,
        "loss_of_means": last.losses(trainer.evaluate),
        "trained_tokens": view.trained_tokens,
        "merged_tokens": round(view.merged_tokens),
        "learner_steps": [learner.steps for learner in view.learners],
        "merges": course.counts.merges,
        "members_per_merge": course.counts.members_per_merge,
        "pushed_bytes": sum(learner.pushed_bytes for learner in view.learners),
        "merged": view.merged,
        "goodput": [goodput_of(shares_of(learner.time_seconds)) for learner in view.learners],
        "virtual_seconds": course.virtual_seconds,
    }
