"""What /metrics says of jobs: their state, with labels that no user makes up, and nothing of a job that is gone."""

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diloco_operator.cluster_state import ClusterSeen, ClusterState, Credential, Expiring
from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.jobs import job_metrics
from diloco_operator.jobs.job_metrics import JobMetrics, JobSeen
from diloco_operator.jobs.jobs import JobKey
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.world_pods import crashing
from testbed.virtual_cluster.world_syncer import THIN_LINKS
from tests.unit.operator.jobs.training_cluster import MIDDLE, training

KEY = JobKey(NAMESPACE, "demo")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
JOB = 'job_name="demo",namespace="team"'
VIEW: dict[str, Any] = {"job": "demo", "epoch": 1, "phase": "Training"}


def lines(*jobs: JobSeen | None) -> set[str]:
    """The samples of these jobs, without the prefix of their names."""
    registry = CollectorRegistry()
    registry.register(JobMetrics(lambda: [one for one in jobs if one is not None]))
    text = generate_latest(registry).decode()
    return {line.removeprefix("diloco_job_") for line in text.splitlines() if line.startswith("diloco_job_")}


def seen(world: ClusterWorld) -> JobSeen | None:
    return world.controller.seen(KEY)


def made(status: dict[str, Any], view: dict[str, Any] | None = None, **spec: Any) -> JobSeen:
    job = {"metadata": {"namespace": NAMESPACE, "name": "demo"}, "spec": spec, "status": status}
    return JobSeen(job, {}, None if view is None else SyncerStatusView.model_validate(VIEW | view), NOW)


def in_regions(*names: str) -> dict[str, Any]:
    return {"phase": "Training", "regions": [{"name": name} for name in names]}


def test_a_job_that_trains_says_how_it_is() -> None:
    world = training()
    world.syncers["demo"].restarts = {"us-west/old/1": 3}
    world.syncers["demo"].links = THIN_LINKS
    world.run(10)
    told = lines(seen(world))
    assert {
        f'condition{{condition="Ready",{JOB},reason="Training"}} 1.0',
        f'condition{{condition="Degraded",{JOB},reason="ScheduleMisfit"}} 1.0',
        f'condition{{condition="Failed",{JOB},reason="AsExpected"}} 0.0',
        f'phase{{{JOB},phase="Training"}} 1.0',
        f'learners_desired{{{JOB},region="us-west"}} 3.0',
        f'learners_training{{{JOB},region="us-west"}} 3.0',
        f'learners_lost{{{JOB},region="us-west"}} 0.0',
        f'learner_restarts{{{JOB},region="us-west"}} 3.0',
        f'learner_restarts{{{JOB},region="us-east"}} 0.0',
        f"budget_tokens{{{JOB}}} 1e+07",
        f"goodput_ratio{{{JOB}}} 0.76",
        f"checkpoint_interval_seconds{{{JOB}}} 1.0",
        f'downlink_used_ratio{{{JOB},region="us-west"}} 1.33',
    } <= told
    (written,) = (float(line.split()[1]) for line in told if line.startswith("checkpoint_timestamp_seconds"))
    assert world.now.timestamp() - 20 < written < world.now.timestamp()


def test_of_a_silent_syncer_the_last_progress_stays_and_no_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_: object) -> SyncerAway:
        return SyncerAway("no answer")

    world = training()
    monkeypatch.setattr(world, "ask", no_answer)
    world.run(60)
    told = lines(seen(world))
    assert f'condition{{condition="Ready",{JOB},reason="SyncerUnreachable"}} -1.0' in told
    assert any(line.startswith("tokens{") for line in told)
    absent = ("learners_training", "learners_lost", "checkpoint_timestamp", "quorum")
    assert not [line for line in told if line.startswith(absent)]


def test_ends_of_processes_are_counted_by_their_cause() -> None:
    world = training()
    world.pods.troubles[MIDDLE] = crashing(world.now, code=137, reason="OOMKilled")
    world.run(60)
    told = lines(seen(world))
    assert f'restarts_total{{cause="OutOfMemory",{JOB}}} 1.0' in told
    assert f'restarts_total{{cause="Preempted",{JOB}}} 0.0' in told


def test_a_job_that_is_gone_or_new_has_no_series() -> None:
    world = ClusterWorld()
    world.watch()
    assert seen(world) is None
    world = training()
    assert lines(seen(world))
    world.jobs.forget(world.jobs.get(KEY) or {})
    assert seen(world) is None


def test_of_a_job_of_another_manager_nothing_is_said() -> None:
    world = training()
    world.change(managedBy="kueue.x-k8s.io/multikueue")
    world.watch()
    assert seen(world) is None


def test_of_an_earlier_job_of_the_name_nothing_is_said() -> None:
    world = training()
    job = dict(world.jobs.get(KEY) or {})
    assert seen(world) is not None
    world.jobs.put(job | {"metadata": job["metadata"] | {"uid": "another"}})
    told = lines(seen(world))
    assert not [line for line in told if line.startswith("learners_lost")]


def test_learners_are_counted_by_region_and_what_became_of_them() -> None:
    learners = [
        {"id": "a/x/0", "state": "Absent", "incarnation": 2, "restarts": 4},
        {"id": "a/x/1", "state": "Absent", "incarnation": 1, "left": True},
        {"id": "a/x/2", "state": "Absent"},
        {"id": "a/y/0", "state": "Quarantined", "incarnation": 1, "resets": 2},
    ]
    status = in_regions("a")
    status["regions"][0]["pools"] = [{"name": "x", "ready": 2, "givenUp": [1, 4]}, {"name": "y", "ready": 1}]
    assert {
        f'learners_lost{{{JOB},region="a"}} 1.0',
        f'learners_quarantined{{{JOB},region="a"}} 1.0',
        f'learner_restarts{{{JOB},region="a"}} 4.0',
        f'learner_resets{{{JOB},region="a"}} 2.0',
        f'learners_ready{{{JOB},region="a"}} 3.0',
        f'learners_given_up{{{JOB},region="a"}} 2.0',
    } <= lines(made(status, {"learners": learners}))


def test_the_loss_of_the_latest_evaluation_is_a_number_or_not() -> None:
    finite, other = {"loss": 2.5}, {"loss": None}
    for evaluations, value in (([finite, other], 0.0), ([other, finite], 1.0)):
        assert f"loss_finite{{{JOB}}} {value}" in lines(made(in_regions(), {"evaluations": evaluations}))


def test_times_of_checkpoint_and_backup_follow_from_their_ages() -> None:
    view = {"checkpoint": {"age_seconds": 4.0}, "backup": {"age_seconds": 100.0}}
    spec = {"syncer": {"checkpointEverySeconds": 7, "backup": {"url": "/b", "everySeconds": 60}}}
    told = lines(made(in_regions(), view, **spec))
    at = NOW.timestamp()
    assert {f"checkpoint_interval_seconds{{{JOB}}} 7.0", f"backup_interval_seconds{{{JOB}}} 60.0"} <= told
    times = {line.partition("{")[0]: float(line.split()[1]) for line in told if "timestamp" in line}
    assert times == {"checkpoint_timestamp_seconds": at - 4, "backup_timestamp_seconds": at - 100}
    none_yet = lines(made(in_regions(), {"backup": {}}))
    assert not [line for line in none_yet if "timestamp" in line]
    assert f"backup_interval_seconds{{{JOB}}} 600.0" in none_yet


def test_other_clusters_say_whether_they_are_ready_and_when_access_ends() -> None:
    status = in_regions("here", "there", "away")
    status["regions"][1] |= {"cluster": "one"}
    status["regions"][2] |= {"cluster": "two", "since": "2026-01-02T03:04:05Z", "reason": "ClusterUnreachable"}
    job = made(status).job
    clusters = {
        "one": ClusterSeen(ClusterState.READY, expiring=Expiring(Credential.TOKEN, NOW, NOW)),
        "two": ClusterSeen(ClusterState.UNREACHABLE),
    }
    told = lines(JobSeen(job, clusters, None, NOW))
    of_clusters = {line for line in told if line.startswith(("cluster_ready", "credential"))}
    assert of_clusters == {
        f'cluster_ready{{{JOB},region="there"}} 1.0',
        f'cluster_ready{{{JOB},region="away"}} 0.0',
        f'credential_expiry_timestamp_seconds{{{JOB},region="there"}} 1.767312e+09',
    }


def test_what_a_job_or_its_syncer_makes_up_is_no_label_and_no_error() -> None:
    conditions = [
        {"type": "Ready", "status": "False", "reason": "MadeUp", "message": "", "lastTransitionTime": str(NOW)},
        {"type": "MadeUp", "status": "True", "reason": "A", "message": "", "lastTransitionTime": str(NOW)},
    ]
    progress = {"loss": "no number", "goodput": "87%", "tokens": 5}
    status = in_regions("a") | {"phase": "MadeUp", "conditions": conditions, "progress": progress}
    assert lines(made(status)) >= {
        f'condition{{condition="Ready",{JOB},reason="Other"}} 0.0',
        f'phase{{{JOB},phase="Other"}} 1.0',
        f"goodput_ratio{{{JOB}}} 0.87",
    }
    huge = 10**400
    view = {
        "learners": [{"id": f"{region}/x/0", "state": "MadeUp", "restarts": huge} for region in ("a", "b", "")],
        "links": {"kind": "MadeUp", "used": [{"name": "b/x", "up": 2.0}, {"name": "a/x", "up": 0.5}, {"name": "a/y"}]},
        "bytes_by_region": [{"region": "a", "up": {"bulk": huge}}, {"region": "b"}],
        "quorum": huge,
    }
    told = lines(made(status, view))
    assert not [line for line in (*lines(made(status)), *told) if "MadeUp" in line or 'region="b"' in line]
    assert {
        f'uplink_used_ratio{{{JOB},region="a"}} 0.5',
        f'uplink_bytes{{{JOB},region="a"}} +Inf',
        f'learner_restarts{{{JOB},region="a"}} +Inf',
    } <= told


def test_of_too_many_jobs_ended_ones_are_left_out_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_metrics, "MOST_JOBS", 2)
    jobs = []
    for name, ended in (("a", True), ("b", False), ("c", False)):
        status = in_regions() | ({"completionTime": "2026-01-02T03:04:05Z"} if ended else {})
        one = made(status)
        jobs.append(JobSeen(one.job | {"metadata": {"namespace": NAMESPACE, "name": name}}, {}, None, NOW))
    registry = CollectorRegistry()
    registry.register(JobMetrics(lambda: jobs))
    with caplog.at_level(logging.WARNING):
        pages = [generate_latest(registry).decode() for _ in range(2)]
    for page in pages:
        assert 'job_name="b"' in page
        assert 'job_name="a"' not in page
        assert "\ndiloco_operator_jobs_without_metrics 1.0" in page
    assert [record.message for record in caplog.records] == ["1 jobs have no metrics: the others are 2"]
