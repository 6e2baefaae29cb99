"""A job's status as an operator reports it, for tests of reading and showing it."""

from typing import Any

import yaml

from diloco.cli.live.cluster_jobs import SeenJob, seen_job

UNSCHEDULABLE = "1 of 2 learners of us-west/old unschedulable: 0/4 nodes have nvidia.com/gpu"


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": reason,
        "message": message,
    }


def pool(name: str, training: int) -> dict[str, Any]:
    return {"name": name, "desired": 2, "ready": training, "training": training, "statefulSet": f"two-regions-{name}"}


def training_status(**changes: Any) -> dict[str, Any]:
    """A status in which three of four learners train and the fourth has no node."""
    status: dict[str, Any] = yaml.safe_load("""
    {observedGeneration: 1, phase: Training, reason: Unschedulable, startTime: "2026-01-02T03:04:00Z",
     learners: {desired: 4, ready: 3, training: 3, summary: 3/4}, restarts: [{learner: us-west/old/0, count: 2}],
     progress: {step: 120, tokens: 840000, budgetTokens: 2000000, percent: 42%, secondsLeft: 185, loss: "1.630",
                trainLoss: "1.712", goodput: 88%, merged: 76%, tokensPerSecond: 12300,
                updatedAt: "2026-01-02T03:09:05Z"},
     syncer: {endpoint: "two-regions-syncer.ml.svc:29400", httpEndpoint: "two-regions-syncer.ml.svc:8080", epoch: 1}}
    """)
    status["conditions"] = [
        condition("Ready", "True", "Training"),
        condition("Progressing", "True", "Training"),
        condition("Degraded", "True", "Unschedulable", UNSCHEDULABLE),
        condition("Suspended", "False", "AsExpected"),
    ]
    status["regions"] = [
        {"name": "us-east", "desired": 2, "training": 2, "pools": [pool("new", 2)]},
        {"name": "us-west", "desired": 2, "training": 1, "pools": [pool("old", 1)]},
    ]
    return status | changes


def complete_status() -> dict[str, Any]:
    changes: dict[str, Any] = yaml.safe_load("""
    {phase: Complete, reason: BudgetReached, completionTime: "2026-01-02T03:19:05Z", regions: [], restarts: [],
     learners: {desired: 0, ready: 0, training: 0, summary: 0/0},
     progress: {step: 290, tokens: 2001920, budgetTokens: 2000000, percent: 100%, secondsLeft: 0, loss: "1.398",
                trainLoss: "1.402", goodput: 92%, merged: 81%, tokensPerSecond: 0},
     model: {persistentVolumeClaim: two-regions-syncer, path: model.safetensors}}
    """)
    told = condition("Complete", "True", "BudgetReached", "2001920 tokens were merged")
    return training_status(**changes, conditions=[condition("Ready", "True", "BudgetReached"), told])


def job(status: dict[str, Any] | None = None, *, name: str = "two-regions", namespace: str = "ml") -> SeenJob:
    """As read from an API server; by default the one that trains."""
    told = training_status() if status is None else status
    return seen_job({"metadata": {"name": name, "namespace": namespace, "generation": 1}, "status": told})


def syncer_account(**changes: Any) -> dict[str, Any]:
    """A syncer's ``/status``, in which one learner trains."""
    account: dict[str, Any] = yaml.safe_load("""
    {job: two-regions, epoch: 1, phase: Training, phase_reason: "", syncer_step: 7, merged_tokens: 250.0,
     budget_tokens: 1000, tokens_per_second: 50.0, seconds_left: 75.0, train_loss: 2.5, eval_loss: 2.75,
     evaluations: [], goodput: 0.95, merged: 0.9, elapsed_seconds: 12.0, rounds_in_flight: 1,
     learners: [{id: us-west/old/0, state: Training, incarnation: 1, steps: 42, tokens: 1000, merged_tokens: 900.0,
                 tokens_per_second: 2000.0, step_seconds: 0.1, versions_behind: 3,
                 restarts: 1, loss: 2.5, last_heard_seconds: 0.1,
                 time_seconds: {merged: 9.0, waiting: 0.1, pending: 0.9}}]}
    """)
    return account | changes
