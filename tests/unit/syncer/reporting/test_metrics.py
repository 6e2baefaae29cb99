import asyncio
import threading
from collections.abc import Iterator

import pytest

from diloco.core.actions import Fence, Merge, Note, Refusal
from diloco.runtime.heartbeat import Heartbeat
from diloco.runtime.http import Response
from diloco.spec.syncer_status import CheckpointStatus, LearnerStatus, LinksStatus, LinkStatus, SyncerStatus
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.reporting.pages import LONGEST_LAG_SECONDS, LoopBusyError, on_loop, routes

STATUS = SyncerStatus(
    job="small",
    epoch=2,
    phase="Training",
    phase_reason="",
    syncer_step=5,
    merged_tokens=640.0,
    budget_tokens=1000,
    tokens_per_second=1.0,
    seconds_left=360.0,
    train_loss=2.0,
    eval_loss=None,
    evaluations=(),
    goodput=0.5,
    bytes_pushed=10,
    bytes_pulled=20,
    elapsed_seconds=3.0,
    rounds_in_flight=1,
    checkpoint=CheckpointStatus(newest="000001", age_seconds=4.0, failures=3, problem="full"),
    tape_problem="",
    learners=(),
)


def page(metrics: SyncerMetrics) -> set[str]:
    return set(metrics.page(STATUS).decode().splitlines())


def test_the_state_of_the_job_is_what_the_status_says() -> None:
    lines = page(SyncerMetrics())
    assert {
        "diloco_merged_tokens_total 640.0",
        "diloco_syncer_steps_total 5.0",
        "diloco_goodput_ratio 0.5",
        "diloco_pushed_bytes_total 10.0",
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
    lines = set(metrics.page(STATUS.model_copy(update={"links": links})).decode().splitlines())
    assert {
        "diloco_links_fit 0.0",
        'diloco_link_used_ratio{link="west/old",way="up"} 0.25',
        'diloco_link_used_ratio{link="west/old",way="down"} 1.5',
    } <= lines


def learner_status(index: int) -> LearnerStatus:
    return LearnerStatus(
        id=f"a/b/{index}",
        state="Training",
        incarnation=1,
        steps=1,
        tokens=64,
        merged_tokens=0.0,
        tokens_per_second=1.0,
        step_seconds=None,
        blocked_fraction=0.0,
        versions_behind=0,
        restarts=0,
        loss=None,
        last_heard_seconds=None,
        time_seconds={"merged": 2.5, "late": 0.5},
    )


def test_given_time_is_shown_by_class_for_the_job_and_each_learner() -> None:
    status = STATUS.model_copy(update={"time_seconds": {"merged": 5.0}, "learners": (learner_status(0),)})
    lines = set(SyncerMetrics().page(status).decode().splitlines())
    assert {
        'diloco_given_seconds{class="merged"} 5.0',
        'diloco_learner_given_seconds{class="merged",learner="a/b/0"} 2.5',
        'diloco_learner_given_seconds{class="late",learner="a/b/0"} 0.5',
    } <= lines


def test_a_job_of_many_learners_has_no_series_for_each_of_them() -> None:
    many = tuple(learner_status(index) for index in range(65))
    status = STATUS.model_copy(update={"time_seconds": {"merged": 5.0}, "learners": many})
    text = SyncerMetrics().page(status).decode()
    assert 'diloco_given_seconds{class="merged"} 5.0' in text
    assert "diloco_learner_given_seconds" not in text


def test_decisions_are_counted_by_kind_and_detail() -> None:
    metrics = SyncerMetrics()
    metrics.observe(Note("LearnerStalled", "", "a/b/0"), 0.0)
    metrics.observe(Fence("a/b/0", 1, Refusal.LEASE_EXPIRED, ""), 0.0)
    lines = page(metrics)
    assert 'diloco_decisions_total{detail="LearnerStalled",kind="Note"} 1.0' in lines
    assert 'diloco_decisions_total{detail="LeaseExpired",kind="Fence"} 1.0' in lines


def test_rounds_are_timed_by_the_decisions_about_them() -> None:
    metrics = SyncerMetrics()
    metrics.observe(Note("RoundOpened", "", fragment=1), 10.0)
    metrics.observe(Note("RoundWaits", "", fragment=1), 12.0)
    metrics.observe(Note("RoundWaits", "", fragment=1), 12.3)  # the same wait, decided anew
    metrics.observe(Merge(1, 1, (), ""), 12.5)
    metrics.observe(Note("RoundOpened", "", fragment=1), 20.0)
    metrics.observe(Merge(1, 2, (), ""), 21.0)
    lines = page(metrics)
    assert {"diloco_quorum_seconds_sum 3.0", "diloco_quorum_seconds_count 2.0"} <= lines
    assert {"diloco_grace_seconds_sum 0.5", "diloco_grace_seconds_count 2.0"} <= lines


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_is_read_on_the_loop_comes_back_to_the_thread_that_asked(loop: asyncio.AbstractEventLoop) -> None:
    assert on_loop(loop, threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        on_loop(loop, lambda: 1 // 0)


def test_a_loop_that_is_gone_makes_pages_unavailable_and_no_fault() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LoopBusyError):
        on_loop(loop, lambda: 1)

    def busy() -> SyncerStatus:
        raise LoopBusyError("the event loop does not answer")

    pages = routes(SyncerMetrics(), Heartbeat(), busy, lambda: False)
    assert pages["/status"]() == Response.text("the event loop does not answer\n", 503)
    assert pages["/metrics"]().status == 503
    assert pages["/readyz"]().status == 503


def test_health_is_the_event_loops_lag() -> None:
    now = 0.0
    heartbeat = Heartbeat(lambda: now)
    pages = routes(SyncerMetrics(), heartbeat, lambda: STATUS, lambda: True)
    assert pages["/healthz"]().status == 200
    assert pages["/readyz"]().body == b"serving\n"
    assert pages["/status"]().content_type == "application/json"
    now = 2 * LONGEST_LAG_SECONDS
    assert pages["/healthz"]().status == 503
