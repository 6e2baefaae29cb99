"""One run of the quality benchmark: what it is, what its result depends on, and how it is carried out.

A result depends on the run's whole configuration, a plain value, and on what the code does, for which the bits of a
small run of the same variant stand; the digest of both names the result in a cache. So a change of the engine repeats
decoupled runs but not data-parallel ones. Other modules combine the results.
"""

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from diloco.learner.data.opening import open_task
from diloco.learner.data.task import JobTask
from diloco.local.time_classes import goodput_of, shares_of
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.simulate import Cut, Kill, Outcome, Profile, Scenario, simulate
from diloco.simulate.baselines import alone, data_parallel
from diloco.simulate.scenario import faults_every
from diloco.simulate.world import simulate_course
from diloco.spec import DiLoCoJob
from support.job import manifest
from support.quality.variants import (
    CHOICE_SEED,
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
PROBE_STEPS = {"calm": 54, "otherwise": 130}
"""Inner steps of the run whose bits stand for the code: every fragment merged twice, or a kill or a cut."""


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
        }

    def manifest(self, tokens: int) -> dict[str, Any]:
        """The job, with a budget of ``tokens`` merged tokens."""
        rates = self.rates
        muon = {} if rates.muon is None else {"type": "Muon", "muon": {"learningRate": rates.muon}}
        training = {
            "tokens": tokens,
            "sequenceLength": SEQUENCE_TOKENS,
            "batchSize": self.load.sequences,
            "seed": self.seed,
            "optimizer": {"learningRate": rates.adamw, **muon},
            "evaluation": {"everyTokens": tokens, "sequences": HELDOUT_SEQUENCES},
        }
        sync: dict[str, Any] = {}
        if self.what.kind == "decoupled":
            outer = {"learningRate": rates.outer_learning_rate, "momentum": rates.momentum}
            sync = {"fragments": FRAGMENTS, "outerOptimizer": outer, **self.what.sync}
        model = {"builtin": {"preset": self.load.preset}}
        return manifest("quality", {"sim": self.what.learners}, training=training, sync=sync, model=model)

    def key(self, fingerprints: Mapping[str, str]) -> str:
        """Digest of the configuration and of what the code does. ``fingerprints``: by variant.

        Runs that only choose the rates of decoupled training stay when the code changes: what is reported is measured
        anew, at the rates that were chosen.
        """
        only_chooses = self.seed == CHOICE_SEED and self.what.kind == "decoupled"
        parts = [self.configuration(), "choice" if only_chooses else fingerprints[self.variant]]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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


def fingerprint(variant: str) -> str:
    """Digest over the result of a small run of ``variant``, which changes as the code's results do."""
    torch.set_num_threads(1)
    rates = Rates(8e-3, 32e-3 if VARIANTS[variant].optimizer == "Muon" else None, 1.0, 0.0)
    calm = VARIANTS[variant].kind == "decoupled" and VARIANTS[variant].world == "calm"
    setting = Setting(variant, "A", PROBE_STEPS["calm" if calm else "otherwise"], 0, rates)
    manifest = setting.manifest(setting.steps * LEARNERS * 32)
    training = manifest["spec"]["training"] | {"sequenceLength": 16, "batchSize": 2}
    training["evaluation"]["sequences"] = 4
    manifest["spec"]["training"] = training
    job = DiLoCoJob.model_validate(manifest)
    if setting.what.kind != "decoupled":
        return repr(_baseline(setting.what.kind)(job, _task(job)).loss)
    digest = hashlib.sha256()
    for values in simulate(job, scenario_of(setting, job.spec.learner_ids), _task(job)).parameters:
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def _baseline(kind: str) -> Any:
    return alone if kind == "alone" else data_parallel


def run(setting: Setting) -> dict[str, Any]:
    """Carry out one run; the result is plain JSON."""
    torch.set_num_threads(1)
    began = time.process_time()
    job = DiLoCoJob.model_validate(setting.manifest(setting.tokens))
    task = _task(job)
    if setting.what.kind == "decoupled":
        job = job_of_equal_work(setting)
        result = _decoupled(simulate(job, scenario_of(setting, job.spec.learner_ids), task))
    else:
        done = _baseline(setting.what.kind)(job, task)
        result = {
            "loss_start": done.loss_start,
            "loss": done.loss,
            "trained_tokens": done.trained_tokens,
            "merged_tokens": done.trained_tokens,
            "learner_steps": [done.steps],
        }
    return {**result, "cpu_seconds": time.process_time() - began}


def job_of_equal_work(setting: Setting) -> DiLoCoJob:
    """The job whose budget of merged tokens makes it train as many tokens as the setting says.

    Found by counted runs, which take the course of the real one. The learning rates end with the budget.
    """
    job = DiLoCoJob.model_validate(setting.manifest(setting.tokens))
    layout = layout_of(build_model(job.spec), job.spec.sync.fragments)
    scenario = scenario_of(setting, job.spec.learner_ids)
    best, nearest = job, float("inf")
    budget = setting.tokens
    for _ in range(BUDGETS_TRIED):
        job = DiLoCoJob.model_validate(setting.manifest(budget))
        trained = simulate_course(job, scenario, layout).view.trained_tokens
        away = abs(trained / setting.tokens - 1)
        if away < nearest:
            best, nearest = job, away
        if nearest <= TOKENS_WITHIN:
            break
        budget = round(budget * setting.tokens / trained)
    return best


def _decoupled(outcome: Outcome) -> dict[str, Any]:
    view = outcome.view
    return {
        "loss_start": outcome.loss_start,
        "loss": outcome.loss,
        "trained_tokens": view.trained_tokens,
        "merged_tokens": round(view.merged_tokens),
        "learner_steps": [learner.steps for learner in view.learners],
        "merges": outcome.counts.merges,
        "members_per_merge": outcome.counts.members_per_merge,
        "pushed_bytes": sum(learner.pushed_bytes for learner in view.learners),
        "merged": view.merged,
        "goodput": [goodput_of(shares_of(learner.time_seconds)) for learner in view.learners],
        "virtual_seconds": outcome.virtual_seconds,
    }
