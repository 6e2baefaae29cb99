"""A syncer and its learners as an operator sees them: figures that grow while learners train, kept on a volume.

It does not depend on Kubernetes.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.spec.names.learner_orders import FAILED_FILE, READMITTED_FILE, orders_in
from diloco.spec.status.engine import LearnerState, Phase
from diloco_operator.manifests.common import JOB_FILE

TOKENS_PER_SECOND = 100.0
"""Of one learner."""
TOKENS_PER_STEP = 50.0

STAYING_SECONDS = 60.0
"""Longest time after which a learner that was told of the end finds out that the job goes on."""

THIN_LINKS: dict[str, Any] = {
    "kind": "LinkTooThin",
    "reason": "the link us-west/old would be used to 133 % by merged fragments on the way down of 2 learner(s)",
    "since_seconds": 12.0,
    "remedies": ["sync.interval: 34", "33.3 Mbit/s on the link us-west/old"],
    "used": [{"name": "us-west/old", "learners": 2, "up": 0.67, "down": 1.33}],
}
"""A syncer's report about links that do not carry the schedule."""


@dataclass
class WorldSyncer:
    """The content of its volume, and its status."""

    job: str
    budget: int
    epoch: int = 0
    merged: float = 0.0
    phase: Phase = Phase.WAITING
    phase_reason: str = "no learner has joined yet"
    exported: bool = False
    joined: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    """Learners that it has heard of: from its manifest, or since they joined."""
    restarts: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    incarnations: dict[str, int] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    too_fast: set[str] = field(default_factory=set)
    """Learners of whose steps a tenth counts."""
    unanswering: dict[str, str] = field(default_factory=dict)
    """Learners that leave requests unanswered, and how."""
    against: set[str] = field(default_factory=set)
    """Learners whose outer gradients point against the others'."""
    loading: dict[str, float] = field(default_factory=dict)
    """Learners that load the model, and for how many seconds."""
    cut_off: set[str] = field(default_factory=set)
    """Learners that run and do not reach it."""
    staying: dict[str, float] = field(default_factory=dict)
    """Learners whose processes were told of the end, and in how many seconds they next ask whether the job goes on."""
    silent: dict[str, float] = field(default_factory=dict)
    """Seconds since it heard of learners, of those that have joined since it started."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Learners whose work is left out of merges, and why."""
    quorum: int | None = None
    """None: an older syncer, which does not report it."""
    doubted_loss: float | None = None
    """Of the newest evaluation, which is in doubt."""
    checkpoint_problem: str = ""
    backup_problem: str | None = None
    """None: it makes no backups."""
    tape_problem: str = ""
    outer_optimizer: str = ""
    computing: str = ""
    links: dict[str, Any] | None = None
    """What it measured of them."""
    reads_orders: bool = True
    """False: kubelet has not updated its files yet."""
    frozen: bool = False
    """Learners train and nothing is merged."""
    export_blocked: bool = False
    rate: float = 0.0
    process: str = ""
    """The pod that it runs in; empty: none."""

    def runs_in(self, process: str) -> bool:
        """Note the pod that it runs in now; returns whether it runs."""
        if process not in ("", self.process):
            self.started()
        self.process = process
        return bool(process)

    def started(self) -> None:
        """Start a new process on the same volume."""
        self.epoch += 1
        self.joined = set()
        self.silent = {}

    def trains(self, seconds: float, present: Iterable[str]) -> None:
        """Let time pass with these learners connected."""
        there, over = set(present), self.phase is Phase.COMPLETE
        self.staying |= dict.fromkeys(there if over else (), STAYING_SECONDS + seconds)
        self.staying = {one: left - seconds for one, left in self.staying.items() if one in there and left > seconds}
        self.joined, before = there - self.given_up - self.cut_off - self.staying.keys(), self.joined
        self.silent = {one: past + seconds for one, past in self.silent.items()} | dict.fromkeys(self.joined, 0.0)
        self.incarnations |= {one: self.incarnations.get(one, 0) + 1 for one in self.joined - before}
        self.ever |= self.joined
        working = self.joined - self.stalled
        if self.phase is Phase.WAITING and self.joined:
            self.phase, self.phase_reason = Phase.TRAINING, "a learner has joined"
        self.rate = 0.0 if self.frozen or self.phase is not Phase.TRAINING else len(working) * TOKENS_PER_SECOND
        self.merged = max(self.merged, min(float(self.budget), self.merged + self.rate * seconds))
        if self.phase is Phase.TRAINING and self.merged >= self.budget:
            self.phase, self.phase_reason = Phase.COMPLETE, f"{self.budget} tokens are merged"
        if self.phase is Phase.COMPLETE and not self.export_blocked:
            self.exported = True

    def reads(self, files: Mapping[str, str]) -> None:
        """Read the budget in its manifest. What has ended the job goes on with a larger one, as after a restart."""
        if not self.reads_orders:
            return
        self.budget = budget = json.loads(files[JOB_FILE])["spec"]["training"]["tokens"]
        if self.phase is Phase.COMPLETE and self.merged < budget:
            self.phase, self.phase_reason, self.exported = Phase.WAITING, "the syncer has restarted", False

    def obey(self, files: Mapping[str, str]) -> None:
        """Follow the files with orders about single learners."""
        if not self.reads_orders:
            return
        self.given_up -= self._meant(files.get(READMITTED_FILE, ""))
        self.given_up |= self._meant(files.get(FAILED_FILE, "")) - self.joined

    def _meant(self, text: str) -> set[str]:
        orders = [one for one in orders_in(text) if one.epoch == self.epoch]
        return {one.learner for one in orders if one.incarnation == self.incarnations.get(one.learner, 0)}

    def fails(self, reason: str) -> None:
        self.phase, self.phase_reason = Phase.FAILED, reason

    def status(self) -> dict[str, Any]:
        """The body of its ``/status``."""
        left = self.budget - self.merged
        return {
            "job": self.job,
            "epoch": self.epoch,
            "phase": self.phase.value,
            "phase_reason": self.phase_reason,
            "model_exported": self.exported,
            "syncer_step": int(self.merged / TOKENS_PER_STEP),
            "merged_tokens": self.merged,
            "budget_tokens": self.budget,
            "tokens_per_second": self.rate,
            "seconds_left": left / self.rate if self.rate else None,
            "train_loss": 5.0 - 3.0 * self.merged / self.budget,
            "eval_loss": 2.5 if self.merged >= self.budget / 2 else None,
            "goodput": 0.76,
            "checkpoint": {"newest": "step-0", "age_seconds": 1.0, "failures": 0, "problem": self.checkpoint_problem},
            "tape_problem": self.tape_problem,
            "outer_optimizer": self.outer_optimizer,
            "computing": self.computing,
            "backup": None if self.backup_problem is None else {"problem": self.backup_problem},
            "links": self.links,
            "learners": [self._learner(learner) for learner in sorted(self.ever | self.given_up)],
            **({"quorum": self.quorum, "quorum_wanted": 9} if self.quorum is not None else {}),
            **({"evaluations": self._evaluations()} if self.doubted_loss is not None else {}),
            "a field of a later version": True,
        }

    def _learner(self, learner: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            "id": learner,
            "state": self._state(learner).value,
            "restarts": self.restarts.get(learner, 0),
            "last_heard_seconds": self.silent.get(learner),
            "loading_seconds": self.loading.get(learner),
        }
        said["incarnation"] = self.incarnations.get(learner, 0)
        said["counted_share"] = 0.1 if learner in self.too_fast else 0.9
        said["unanswered_now"] = self.unanswering.get(learner, "")
        said["against"] = learner in self.against
        left_out = self.left_out.get(learner)
        return said if left_out is None else said | {"left_out": 7, "left_out_now": left_out}

    def _evaluations(self) -> list[dict[str, Any]]:
        doubted = self.doubted_loss if math.isfinite(self.doubted_loss or 0.0) else None
        return [{"loss": 2.5, "doubted": False}, {"loss": doubted, "doubted": True}]

    def _state(self, learner: str) -> LearnerState:
        if learner in self.given_up:
            return LearnerState.GIVEN_UP
        if learner in self.stalled:
            return LearnerState.STALLED
        if learner in self.loading:
            return LearnerState.LOADING
        return LearnerState.TRAINING if learner in self.joined else LearnerState.ABSENT
