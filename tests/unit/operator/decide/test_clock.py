"""An operator whose clock was ahead or behind, and is corrected: what it wrote has no effect for a year."""

import json
from datetime import timedelta

from diloco_operator.clusters.state import ClusterState
from testbed.virtual_cluster.clusters_world import FAR, ClustersWorld, clusters_job
from testbed.virtual_cluster.operator_world import START, World, job_object, stamp
from testbed.virtual_cluster.world_pods import unschedulable
from tests.unit.operator.decide.training_world import training_world

YEAR = timedelta(days=365)


def a_year_ahead(w: World) -> None:
    """Every time in the status becomes one of a clock that is a year ahead, those in texts too."""
    w.job["status"] = json.loads(json.dumps(w.status).replace("2026-", "2027-"))


def reconcile_a_year_behind(w: World) -> None:
    w.now -= YEAR
    w.reconcile()
    w.now += YEAR


def test_a_job_is_stuck_although_its_last_merge_is_yet_to_come() -> None:
    w = training_world()
    w.syncer.frozen = True
    w.run(20)
    a_year_ahead(w)
    w.run(10)
    assert w.status["progress"]["updatedAt"] <= stamp(w.now)
    assert all(one["lastTransitionTime"] <= stamp(w.now) for one in w.status["conditions"])
    written = w.status_writes
    w.run(300)
    assert w.status_writes == written
    assert w.condition("Progressing")["reason"] == "Training"
    w.run(320)
    assert w.condition("Progressing")["reason"] == "NoProgress"


def test_a_syncer_that_is_away_since_next_year_is_away_too_long_in_time() -> None:
    w = training_world()
    w.pods.troubles["demo-syncer"] = unschedulable("0/4 nodes are available.")
    w.run(20)
    assert ", since 2026-" in w.condition("Ready")["message"]
    a_year_ahead(w)
    w.run(10)
    assert ", since 2026-" in w.condition("Ready")["message"]
    assert w.status["phase"] == "Training"
    w.run(620)
    assert w.status["phase"] == "Pending"


def test_a_cluster_that_is_away_since_next_year_is_waited_for_as_any() -> None:
    w = ClustersWorld(job=clusters_job())
    w.run(60)
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(10)
    a_year_ahead(w)
    w.change(suspend=True)
    w.run(300)
    assert w.condition("Suspended")["reason"] == "Suspending"
    w.run(400)
    assert w.status["phase"] == "Suspended"


def test_a_job_that_ends_by_a_clock_that_is_behind_is_kept_for_its_time() -> None:
    w = training_world(ttlSecondsAfterFinished=3600)
    seen = w.status["progress"]["updatedAt"]
    w.syncer.merged = float(w.syncer.budget)
    w.tick()
    reconcile_a_year_behind(w)
    assert w.status["phase"] == "Complete"
    assert seen <= w.status["completionTime"] <= stamp(w.now)
    w.run(3000, every=60.0)
    assert not w.job_deleted
    w.run(700, every=60.0)
    assert w.job_deleted


def test_a_job_that_ended_by_a_clock_that_was_ahead_is_deleted_late_only() -> None:
    w = training_world(ttlSecondsAfterFinished=3600)
    w.syncer.merged = float(w.syncer.budget)
    w.run(60)
    a_year_ahead(w)
    w.run(7200, every=600.0)
    assert not w.job_deleted


def test_a_job_that_starts_by_a_clock_that_is_behind_passes_no_deadline() -> None:
    job = job_object(tokens=100_000_000, activeDeadlineSeconds=3600)
    job["metadata"]["creationTimestamp"] = stamp(START)
    w = World(job=job)
    reconcile_a_year_behind(w)
    assert w.status["startTime"] == stamp(START)
    w.run(60)
    assert w.status["phase"] == "Training"
