"""What Prometheus is told: the state of the job as in the status, and what was decided."""

import math
from typing import Any

from diloco.core.engine.actions import Fence, Merge, Note, NoteKind, Refusal
from diloco.spec.status.engine import PartStatus, RecoveriesStatus
from diloco.spec.status.syncer import BytesByKind, LinksStatus, LinkStatus, RegionBytes
from diloco.syncer.reporting.metrics import SyncerMetrics
from tests.support.status_of_a_job import STATUS, learner_status


def page(metrics: SyncerMetrics, **changes: Any) -> set[str]:
    return set(metrics.page(STATUS.model_copy(update=changes)).decode().splitlines())


def test_the_state_of_the_job_is_what_the_status_says() -> None:
    lines = page(SyncerMetrics())
    assert {
        "diloco_merged_tokens 640.0",
        "diloco_syncer_steps 5.0",
        "diloco_merged_ratio 0.5",
        "diloco_goodput_ratio 0.75",
        "diloco_merge_failures_total 0.0",
        "diloco_checkpoint_failures_total 3.0",
        "diloco_checkpoint_age_seconds 4.0",
        'diloco_learners{state="Training"} 0.0',
        "diloco_tape_failing 0.0",
    } <= lines


def test_how_full_links_are_is_told_once_it_is_known() -> None:
    metrics = SyncerMetrics()
    assert not any(line.startswith("diloco_link") for line in page(metrics))
    used = (LinkStatus(name="west/old", learners=2, up=0.25, down=1.5),)
    links = LinksStatus(kind="LinkTooThin", reason="", since_seconds=1.0, remedies=(), used=used)
    lines = page(metrics, links=links)
    assert {
        "diloco_links_fit 0.0",
        'diloco_link_used_ratio{link="west/old",way="up"} 0.25',
        'diloco_link_used_ratio{link="west/old",way="down"} 1.5',
    } <= lines
    assert "diloco_links_fit 1.0" in page(metrics, links=links.model_copy(update={"kind": "Fits"}))


def test_bytes_are_counted_by_region_way_and_kind() -> None:
    assert not any(line.startswith("diloco_region_bytes") for line in page(SyncerMetrics()))
    west = RegionBytes(region="west", up=BytesByKind(bulk=7, control=2), down=BytesByKind(again=3))
    assert {
        'diloco_region_bytes{kind="bulk",region="west",way="up"} 7.0',
        'diloco_region_bytes{kind="control",region="west",way="up"} 2.0',
        'diloco_region_bytes{kind="again",region="west",way="down"} 3.0',
        'diloco_region_bytes{kind="bulk",region="west",way="down"} 0.0',
    } <= page(SyncerMetrics(), bytes_by_region=(west,))


def test_what_is_not_known_yet_is_left_out_or_none() -> None:
    none_written = STATUS.checkpoint.model_copy(update={"age_seconds": None})
    lines = page(SyncerMetrics(), goodput=None, merged=None, checkpoint=none_written)
    assert "diloco_merged_ratio 0.0" in lines
    assert not any(line.startswith(("diloco_eval_loss", "diloco_checkpoint_age")) for line in lines)
    lines = page(SyncerMetrics(), eval_loss=2.5, tape_problem="the tape waits for the disk: it is full")
    assert {"diloco_eval_loss 2.5", "diloco_tape_failing 1.0"} <= lines


def test_learners_are_counted_by_state() -> None:
    learners = (learner_status(0), learner_status(1), learner_status(2).model_copy(update={"state": "Absent"}))
    lines = page(SyncerMetrics(), learners=learners)
    assert {'diloco_learners{state="Training"} 2.0', 'diloco_learners{state="Absent"} 1.0'} <= lines
    assert 'diloco_learners{state="Stalled"} 0.0' in lines


def test_allotted_time_is_shown_by_class_for_the_job_and_each_learner() -> None:
    lines = page(SyncerMetrics(), time_seconds={"merged": 5.0}, learners=(learner_status(0),))
    assert {
        'diloco_allotted_seconds{class="merged"} 5.0',
        'diloco_learner_allotted_seconds{class="merged",learner="a/b/0"} 2.5',
        'diloco_learner_allotted_seconds{class="late",learner="a/b/0"} 0.5',
    } <= lines


def test_a_job_of_many_learners_has_no_series_for_each_of_them() -> None:
    many = tuple(learner_status(index) for index in range(65))
    lines = page(SyncerMetrics(), time_seconds={"merged": 5.0}, learners=many[:64])
    assert 'diloco_learner_allotted_seconds{class="merged",learner="a/b/63"} 2.5' in lines
    lines = page(SyncerMetrics(), time_seconds={"merged": 5.0}, learners=many)
    assert 'diloco_allotted_seconds{class="merged"} 5.0' in lines
    assert not any("diloco_learner_allotted_seconds" in line for line in lines)


def test_decisions_are_counted_by_kind_and_detail() -> None:
    metrics = SyncerMetrics()
    metrics.observe(Note(NoteKind.LEARNER_STALLED, "", "a/b/0"), 0.0)
    metrics.observe(Fence("a/b/0", 1, Refusal.LEASE_EXPIRED, ""), 0.0)
    lines = page(metrics)
    assert 'diloco_decisions_total{detail="LearnerStalled",kind="Note"} 1.0' in lines
    assert 'diloco_decisions_total{detail="LeaseExpired",kind="Fence"} 1.0' in lines


def test_rounds_are_timed_by_the_decisions_about_them() -> None:
    metrics = SyncerMetrics()
    metrics.observe(Note(NoteKind.ROUND_OPENED, "", fragment=0), 10.0)
    metrics.observe(Note(NoteKind.ROUND_WAITS, "", fragment=0), 12.0)
    metrics.observe(Note(NoteKind.ROUND_WAITS, "", fragment=0), 12.3)  # the same wait, decided anew
    metrics.observe(Note(NoteKind.LEARNER_EXCLUDED, "", "a/b/0", fragment=0), 12.4)  # times nothing
    metrics.observe(Merge(0, 1, (), ""), 12.5)
    metrics.observe(Note(NoteKind.ROUND_OPENED, "", fragment=0), 20.0)
    metrics.observe(Merge(0, 2, (), ""), 21.0)
    lines = page(metrics)
    assert {"diloco_quorum_seconds_sum 3.0", "diloco_quorum_seconds_count 2.0"} <= lines
    assert {"diloco_grace_seconds_sum 0.5", "diloco_grace_seconds_count 2.0"} <= lines


def test_a_round_that_was_abandoned_is_not_in_the_next_ones_times() -> None:
    metrics = SyncerMetrics()
    for opened in (10.0, 20.0):
        metrics.observe(Note(NoteKind.ROUND_OPENED, "", fragment=1), opened)
        metrics.observe(Note(NoteKind.ROUND_WAITS, "", fragment=1), opened + 2.0)
    metrics.observe(Merge(1, 1, (), ""), 23.0)
    lines = page(metrics)
    assert {"diloco_quorum_seconds_sum 4.0", "diloco_grace_seconds_sum 1.0"} <= lines


def test_durations_have_the_buckets_that_dashboards_know() -> None:
    lines = page(SyncerMetrics())
    buckets = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, math.inf}
    for name in ("quorum", "grace", "merge", "checkpoint"):
        start = f'diloco_{name}_seconds_bucket{{le="'
        found = {float(line.removeprefix(start).partition('"')[0]) for line in lines if line.startswith(start)}
        assert found == buckets


def test_recoveries_are_a_histogram_of_each_part() -> None:
    down = PartStatus(part="down", total_seconds=14.0, counts=(1, 0, 2))
    lines = page(SyncerMetrics(), recoveries=RecoveriesStatus(count=3, bounds=(1.0, 3.0), parts=(down,)))
    assert {
        'diloco_recovery_seconds_bucket{le="1",part="down"} 1.0',
        'diloco_recovery_seconds_bucket{le="3",part="down"} 1.0',
        'diloco_recovery_seconds_bucket{le="+Inf",part="down"} 3.0',
        'diloco_recovery_seconds_count{part="down"} 3.0',
        'diloco_recovery_seconds_sum{part="down"} 14.0',
    } <= lines
