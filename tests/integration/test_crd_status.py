"""What ``kubectl`` shows of a job, and which statuses a real API server accepts."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from diloco.spec.status.job import (
    Condition,
    ExportedModel,
    JobStatus,
    LearnerCounts,
    LearnerRestarts,
    PoolStatus,
    Progress,
    RegionStatus,
    SyncerEndpoints,
)
from testbed.api_server.server import ApiServer
from tests.support.job_manifests import GOOD

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAME = GOOD["metadata"]["name"]
STATUS = JobStatus(
    observed_generation=1,
    phase="Training",
    reason="LearnersMissing",
    conditions=(
        Condition(
            type="Ready", status="True", observed_generation=1, last_transition_time=NOON, reason="Training", message=""
        ),
        Condition(type="Degraded", status="True", last_transition_time=NOON, reason="Unschedulable", message="1 of 3"),
    ),
    progress=Progress(
        step=77,
        tokens=420_000,
        budget_tokens=1_000_000,
        percent="42%",
        seconds_left=300,
        loss="1.630",
        doubted_loss="0.010",
        train_loss="1.7",
        goodput="76%",
        tokens_per_second=1933,
        updated_at=NOON,
    ),
    learners=LearnerCounts(desired=4, ready=4, training=3, summary="3/4", quorum=3),
    regions=(
        RegionStatus(
            name="us-east",
            desired=3,
            training=2,
            pools=(PoolStatus(name="new", desired=2, left_out=1, given_up=(3, 5), stateful_set="x"),),
        ),
    ),
    restarts=(LearnerRestarts(learner="us-east/new/0", count=2),),
    syncer=SyncerEndpoints(endpoint="two-regions-syncer.default.svc:29400", http_endpoint="x:8080", epoch=1),
    model=ExportedModel(persistent_volume_claim="two-regions-syncer", path="model.safetensors"),
    start_time=NOON,
    completion_time=NOON,
)


@pytest.fixture
def job(job_server: ApiServer) -> Iterator[str]:
    """The name of a job that exists for one test."""
    job_server.kubectl("create", "--filename=-", text=json.dumps(GOOD))
    yield NAME
    job_server.kubectl("delete", "dlj", NAME)


def _patch(server: ApiServer, status: object, *, check: bool = True) -> str:
    patch = json.dumps({"status": status})
    done = server.kubectl("patch", "dlj", NAME, "--subresource=status", "--type=merge", f"--patch={patch}", check=check)
    return done.stderr


def _table(server: ApiServer, *arguments: str) -> dict[str, str]:
    """The one row of ``kubectl get dlj`` by column."""
    header, row = server.kubectl("get", "dlj", *arguments).stdout.splitlines()
    starts = [header.index(name) for name in header.split()]
    ends = [*starts[1:], None]
    return {header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends, strict=True)}


def test_a_new_job_is_shown_before_anything_is_known_of_it(job_server: ApiServer, job: str) -> None:
    row = _table(job_server)
    assert row.pop("AGE")
    assert row == {
        "NAME": job, "PHASE": "", "READY": "", "PROGRESS": "", "LEARNERS": "", "LOSS": ""
    }  # fmt: skip


def test_what_one_asks_at_night_is_in_one_line(job_server: ApiServer, job: str) -> None:
    _patch(job_server, STATUS.as_object())
    row = _table(job_server, "--output=wide")
    assert row.pop("AGE")
    assert row == {
        "NAME": job,
        "PHASE": "Training",
        "READY": "True",
        "STEP": "77",
        "PROGRESS": "42%",
        "LEARNERS": "3/4",
        "LOSS": "1.630",
        "GOODPUT": "76%",
        "REASON": "LearnersMissing",
        "SYNCER": "two-regions-syncer.default.svc:29400",
    }
    assert {"STEP", "GOODPUT", "REASON", "SYNCER"}.isdisjoint(_table(job_server))


@pytest.mark.usefixtures("job")
def test_a_status_comes_back_as_it_was_written(job_server: ApiServer) -> None:
    _patch(job_server, STATUS.as_object())
    stored = json.loads(job_server.kubectl("get", "dlj", NAME, "--output=json").stdout)["status"]
    assert stored == STATUS.as_object()
    assert JobStatus.model_validate(stored) == STATUS


@pytest.mark.usefixtures("job")
def test_the_status_of_a_newer_operator_is_taken_but_no_condition_twice(job_server: ApiServer) -> None:
    status = STATUS.as_object()
    newer = {**status["conditions"][0], "type": "Migrating"}
    _patch(job_server, {**status, "phase": "Migrating", "conditions": [*status["conditions"], newer]})
    stored = json.loads(job_server.kubectl("get", "dlj", NAME, "--output=json").stdout)["status"]
    assert JobStatus.model_validate(stored).conditions[-1].type == "Migrating"
    unsaid = {key: value for key, value in newer.items() if key != "message"}
    assert "status.conditions[0].message: Required" in _patch(job_server, {"conditions": [unsaid]}, check=False)
    twice = [status["conditions"][0], status["conditions"][0]]
    assert "status.conditions[1]: Duplicate value" in _patch(job_server, {"conditions": twice}, check=False)


@pytest.mark.usefixtures("job")
def test_a_job_goes_by_its_short_name_and_is_not_among_all(job_server: ApiServer) -> None:
    for kind in ("dlj", "dilocojob", "dilocojobs", "diloco"):
        assert job_server.kubectl("get", kind, "--output=name").stdout == f"dilocojob.diloco.dev/{NAME}\n"
    assert NAME not in job_server.kubectl("get", "all", "--output=name").stdout


def test_kubectl_explains_a_field_as_the_reference_does(job_server: ApiServer) -> None:
    explained = job_server.kubectl("explain", "dlj.spec.sync.quorum").stdout
    assert "K: learners that must send" in " ".join(explained.split())
