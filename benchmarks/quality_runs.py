"""The runs that the quality benchmark is made of: what each variant changes, and how one is carried out.

A run is named by its setting. What its result depends on is its whole configuration (manifest, world, kind), a plain
value, and what the code does, for which the bits of one small run stand; the digest of both names the result in a
cache. This module must not know how results are put together.
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

from diloco.learner.data import TokenSource, open_source
from diloco.simulate import Cut, Kill, Profile, Scenario, alone, data_parallel, faults_every, simulate
from diloco.spec import DiLoCoJob

LEARNERS = 4
BATCH_SEQUENCES = 16
SEQUENCE_TOKENS = 64
STEP_SECONDS = 0.5
"""Virtual: 400 inner steps are 200 s, long enough for a kill a minute to be felt."""
JITTER = 0.05
RESTART_SECONDS = 10.0
CUT_SECONDS = 18.0
INNER_LEARNING_RATE = 8e-3

VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {"kind": "alone"},
    "data_parallel": {"kind": "data_parallel"},
    "lock_step": {"quorum": LEARNERS, "maxStalenessSteps": 26},
    "decoupled": {},
    "faults": {"world": "faults"},
    "mean": {"merge": "Mean"},
    "no_token_weights": {"tokenWeights": False},
    "int4": {"compression": "Int4"},
    "int4_no_feedback": {"compression": "Int4", "errorFeedback": False},
    "anchor_current": {"anchor": "Current"},
    "faults_no_token_weights": {"world": "faults", "tokenWeights": False},
    "cuts": {"world": "cuts"},
}
"""What each variant changes in ``spec.sync``; ``kind`` and ``world`` are about the run itself."""
CANARIES = ("data_parallel", "lock_step", "faults")
COMPARED_WITH = {"faults_no_token_weights": "faults"}
"""The variant that a variant is held against; the others are held against ``decoupled``."""
WORLDS = {
    "calm": "four learners of one speed",
    "faults": "the last learner at half speed, and every minute a learner is killed and starts again 10 s later",
    "cuts": "every minute a learner's link is cut for 18 s, longer than an interval",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    variant: str
    steps: int
    """Inner steps a learner makes if all share the budget evenly."""
    seed: int
    outer_learning_rate: float = 1.0
    outer_momentum: float = 0.0

    @property
    def kind(self) -> str:
        """``alone``, ``data_parallel`` or ``decoupled``: which loop runs it."""
        return str(VARIANTS[self.variant].get("kind", "decoupled"))

    @property
    def world(self) -> str:
        """What learners and links are like: one of ``WORLDS``."""
        return str(VARIANTS[self.variant].get("world", "calm"))

    @property
    def tokens(self) -> int:
        """The budget."""
        return self.steps * LEARNERS * BATCH_SEQUENCES * SEQUENCE_TOKENS

    def configuration(self) -> dict[str, Any]:
        """Everything the result depends on, as plain JSON."""
        sync = {name: value for name, value in VARIANTS[self.variant].items() if name not in ("kind", "world")}
        outer = {"learningRate": self.outer_learning_rate, "momentum": self.outer_momentum}
        manifest = {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "quality"},
            "spec": {
                "model": {"builtin": {"preset": "pico"}},
                "data": {"text": {}},
                "training": {
                    "tokens": self.tokens,
                    "sequenceLength": SEQUENCE_TOKENS,
                    "batchSize": BATCH_SEQUENCES,
                    "seed": self.seed,
                    "optimizer": {"learningRate": INNER_LEARNING_RATE},
                    "evaluation": {"everyTokens": self.tokens, "sequences": 1024},
                },
                "sync": {"outerOptimizer": outer, **sync},
                "regions": [{"name": "sim", "pools": [{"name": "pool", "learners": LEARNERS}]}],
            },
        }
        world = [self.world, WORLDS[self.world], STEP_SECONDS, JITTER, RESTART_SECONDS, CUT_SECONDS]
        return {"kind": self.kind, "manifest": manifest, "world": world, "python": platform.python_version()}

    @property
    def canary(self) -> str:
        """The small run that stands for the code that this one goes through."""
        if self.kind != "decoupled":
            return "data_parallel"
        return "lock_step" if self.variant == "lock_step" else "faults"

    def key(self, fingerprints: Mapping[str, str]) -> str:
        """Digest of the configuration and of what the code does."""
        parts = [self.configuration(), fingerprints[self.canary]]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def scenario_of(setting: Setting, learners: tuple[str, ...]) -> Scenario:
    """The setting's world."""
    everyone = Profile(step_seconds=STEP_SECONDS, jitter=JITTER)
    every_minute = partial(
        faults_every, 60.0, learners=learners, until_seconds=4 * setting.steps * STEP_SECONDS, seed=setting.seed
    )
    match setting.world:
        case "faults":
            slow = dataclasses.replace(everyone, step_seconds=2 * STEP_SECONDS)
            kills = every_minute(lambda learner, at_seconds: Kill(learner, at_seconds, RESTART_SECONDS))
            return Scenario({learners[-1]: slow}, everyone, faults=kills, seed=setting.seed)
        case "cuts":
            cuts = every_minute(lambda learner, at_seconds: Cut(learner, at_seconds, CUT_SECONDS))
            return Scenario(default=everyone, faults=cuts, seed=setting.seed)
        case _:
            return Scenario(default=everyone, seed=setting.seed)


_sources: list[TokenSource] = []
"""The corpus of this worker process."""


def fingerprints() -> dict[str, str]:
    """By canary: digest over the result of a small run, which changes as the code's results do."""
    torch.set_num_threads(1)
    return {canary: _fingerprint(canary) for canary in CANARIES}


def _fingerprint(canary: str) -> str:
    setting = Setting(canary, 130, 0)
    manifest = setting.configuration()["manifest"]
    training = manifest["spec"]["training"] | {"tokens": 130 * LEARNERS * 32, "sequenceLength": 16, "batchSize": 2}
    training["evaluation"] = {"everyTokens": training["tokens"], "sequences": 4}
    manifest["spec"]["training"] = training
    manifest["spec"]["sync"]["compression"] = "Int4"
    job = DiLoCoJob.model_validate(manifest)
    if setting.kind == "data_parallel":
        return repr(data_parallel(job, _source(job)).loss)
    digest = hashlib.sha256()
    for values in simulate(job, scenario_of(setting, job.spec.learner_ids), _source(job)).parameters:
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def _source(job: DiLoCoJob) -> TokenSource:
    if not _sources:
        _sources.append(open_source(job.spec.data))
    return _sources[0]


def run(setting: Setting) -> dict[str, Any]:
    """Carry out one run; the result is plain JSON."""
    torch.set_num_threads(1)
    job = DiLoCoJob.model_validate(setting.configuration()["manifest"])
    source = _source(job)
    began = time.process_time()
    if setting.kind == "decoupled":
        outcome = simulate(job, scenario_of(setting, job.spec.learner_ids), source)
        view = outcome.view
        result = {
            "loss_start": outcome.loss_start,
            "loss": outcome.loss,
            "trained_tokens": sum(learner.tokens for learner in view.learners),
            "merged_tokens": view.merged_tokens,
            "virtual_seconds": outcome.virtual_seconds,
            "goodput": view.goodput,
            "merges": outcome.counts.merges,
            "members_per_merge": outcome.counts.members_per_merge,
            "discarded": outcome.counts.discarded,
            "lagging": outcome.counts.lagging,
            "restarts": sum(learner.restarts for learner in view.learners),
            "trace": outcome.trace_digest,
        }
    else:
        baseline = (alone if setting.kind == "alone" else data_parallel)(job, source)
        result = dataclasses.asdict(baseline) | {"merged_tokens": baseline.trained_tokens}
    return {**result, "cpu_seconds": time.process_time() - began}
