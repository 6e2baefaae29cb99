"""The workers that pull: what they request, what they refuse to receive, and how they apply an update."""

import logging
import math

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.pull_queue import PullOrder
from diloco.runtime.process.busy import BusyMeter, Moved
from diloco.wire.errors import ClosedError, CorruptedError, DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import PullHeader
from tests.support.hand_clock import HandClock, clock_of
from tests.unit.learner.link.pulls import BASE, CODEC, MERGED, NOW, Bench


def test_an_update_is_added_to_the_version_held_and_is_what_the_syncer_has() -> None:
    bench = Bench()
    (arrival,) = bench.pull()
    assert [request.held_version for request in bench.syncer.requests] == [8]
    assert arrival.version == 9
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.pulls, bench.counts.updates, bench.counts.bytes_pulled) == (1, 1, bench.syncer.payload.numel())
    held = bench.holdings.held("1", 0)
    assert held is not None
    assert torch.equal(held.values, BASE)


@pytest.mark.parametrize(
    ("holds", "downlink", "load", "held"),
    [(7, True, [], 7), (8, False, [], None), (8, True, [0], None)],
    ids=["another version", "a job without updates", "to be loaded"],
)
def test_a_fragment_is_taken_whole_where_an_update_is_of_no_use(
    holds: int, load: list[int], held: int | None, *, downlink: bool
) -> None:
    bench = Bench(holds=holds, downlink=downlink)
    bench.holdings.admitted(NOW, load)
    (arrival,) = bench.pull()
    assert [request.held_version for request in bench.syncer.requests] == [held]
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.updates, bench.counts.bytes_pulled) == (0, 12)


def test_what_is_held_of_another_epoch_is_no_base() -> None:
    bench = Bench()
    bench.now = restarted = Membership("2", 1)
    bench.holdings.admitted(restarted, [0])
    bench.pull_queue.session_begins(restarted)
    bench.pull_queue.want(PullOrder(restarted, 0, 9))
    (arrival,) = bench.work_off()
    assert [request.held_version for request in bench.syncer.requests] == [None]
    assert arrival.membership == restarted


def test_a_wrong_update_is_dropped_and_the_fragment_pulled_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.syncer.payload[-1] ^= 1
    (arrival,) = bench.pull()
    assert [request.held_version for request in bench.syncer.requests] == [8, None]
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.updates_wrong, bench.counts.pulls) == (1, 2)
    assert "fragment 0 from version 8 to 9 does not give the syncer's values" in caplog.text


def test_an_update_that_cannot_be_decoded_is_a_wrong_one() -> None:
    bench = Bench(codec=codec_named("TopK"))
    bench.syncer.payload[4:] = 0xFF  # a place outside of the fragment
    (arrival,) = bench.pull()
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.updates_wrong, bench.counts.pulls) == (1, 2)


def test_a_posted_update_that_comes_out_wrong_is_wished_for_whole() -> None:
    bench = Bench()
    bench.syncer.payload[-1] ^= 1
    assert bench.post() == []
    (arrival,) = bench.work_off()
    assert [(request.posted, request.held_version) for request in bench.syncer.requests] == [(True, 8), (False, None)]
    assert torch.equal(arrival.values, bench.syncer.new)


def test_after_three_wrong_updates_in_a_row_it_pulls_whole_fragments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.syncer.payload[-1] ^= 1
    for _ in range(4):
        bench.pull()
    assert [request.held_version for request in bench.syncer.requests] == [8, None, 8, None, 8, None, None]
    given_up = "3 wrong updates in a row; pulling whole fragments from now on"
    assert [given_up in record.getMessage() for record in caplog.records] == [False, False, False, True]


def test_a_correct_update_resets_the_count_of_wrong_ones() -> None:
    bench = Bench()
    for wrong in (True, True, False, True, True, False):
        bench.syncer.payload[-1] ^= wrong
        bench.pull()
        bench.syncer.payload[-1] ^= wrong
    held = [request.held_version for request in bench.syncer.requests]
    assert held == [8, None, 8, None, 8, 8, None, 8, None, 8]


@pytest.mark.parametrize(
    "offered",
    [
        PullHeader(0, 9, 1 << 40),
        PullHeader(1, 9, 12),
        PullHeader(0, 8, 12),
        PullHeader(0, 9, 12, b"", "Int8", 8),
        PullHeader(0, 9, CODEC.payload_bytes(3), b"", "Int8", 7),
        PullHeader(0, 9, 6, b"", "BF16", 8),
        PullHeader(0, 9, CODEC.payload_bytes(3)),
    ],
    ids=["too large", "another fragment", "too old", "size", "another base", "another codec", "no codec"],
)
def test_what_is_not_what_was_asked_for_takes_no_memory(offered: PullHeader) -> None:
    bench = Bench(offered)
    bench.syncer.after_call = lambda: setattr(bench, "now", None if len(bench.syncer.requests) > 1 else NOW)
    bench.syncer.fates.append(UnavailableError("broken"))
    assert bench.pull() == []
    assert bench.buffers == 0


def test_a_pull_is_tried_again_while_its_admission_lasts() -> None:
    bench = Bench(UnavailableError("broken"), CorruptedError("a checksum"))
    (arrival,) = bench.pull()
    assert (arrival.version, bench.counts.retries) == (9, 2)


def test_a_stopping_learner_does_not_retry_but_pulls_whole_what_was_wrong() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.stopped.set()
    assert bench.pull() == []
    assert len(bench.syncer.requests) == 1
    bench.syncer.payload[-1] ^= 1
    assert len(bench.pull()) == 1


def test_a_version_that_is_being_swapped_in_is_not_pulled() -> None:
    bench = Bench()
    # The notice comes while the posted pull is arriving, so that the order waits for it.
    bench.syncer.while_it_comes = lambda: bench.pull_queue.want(PullOrder(NOW, 0, 9))
    (arrival,) = bench.post()
    assert bench.work_off() == []  # the loop has taken it and still copies it into the model
    assert len(bench.syncer.requests) == 1
    bench.holdings.received("1", 0, 9, arrival.values)
    assert bench.pull(9) == []
    assert len(bench.syncer.requests) == 1


def test_a_version_that_was_swapped_in_may_have_to_be_loaded_again() -> None:
    bench = Bench()
    bench.post()
    again = PullOrder(NOW, 0, 9)
    bench.pull_queue.want(again)
    assert bench.work_off() == []
    bench.pull_queue.session_begins(NOW)
    bench.holdings.admitted(NOW, [0])
    bench.pull_queue.want(again)
    assert len(bench.work_off()) == 1
    assert len(bench.syncer.requests) == 2


def test_a_version_that_is_held_already_is_not_pulled() -> None:
    bench = Bench()
    assert bench.pull(8) == []
    assert bench.post(8) == []
    assert bench.syncer.requests == []


def test_a_posted_pull_says_what_is_held_and_lands_like_any() -> None:
    bench = Bench()
    (arrival,) = bench.post()
    assert [(request.posted, request.held_version) for request in bench.syncer.requests] == [(True, 8)]
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.posted, bench.counts.pulls) == (1, 1)
    assert bench.work_off() == []
    assert len(bench.syncer.requests) == 1


@pytest.mark.parametrize(
    "fate", [RefusedError("not made in time"), UnavailableError("broken"), ClosedError("withdrawn"), DeadlineError("")]
)
def test_a_failed_post_takes_no_memory_and_the_notice_still_pulls(fate: WireError) -> None:
    bench = Bench(fate)
    assert bench.post() == []
    assert (bench.buffers, bench.counts.retries) == (0, 0)
    (arrival,) = bench.pull()
    assert arrival.version == 9


def test_a_post_that_broke_off_while_it_was_answered_is_pulled_at_once() -> None:
    bench = Bench()
    bench.syncer.while_it_comes = bench.syncer.breaks_off
    assert bench.post() == []
    (arrival,) = bench.work_off()
    assert torch.equal(arrival.values, bench.syncer.new)


def test_a_pull_takes_its_time_from_when_its_answer_begins() -> None:
    clock, bench = HandClock(), Bench(UnavailableError("broken"), None)
    bench.counts.received = BusyMeter(clock)
    bench.syncer.after_call = lambda: setattr(clock, "now", clock.now + 60.0)  # before the answer begins

    def breaks_off() -> None:
        clock.now += 5.0
        bench.syncer.breaks_off()

    bench.syncer.while_it_comes = breaks_off
    assert bench.pull()
    assert bench.counts.received.read() == Moved(5.0, bench.syncer.payload.numel())


# Of a pull of 3 values: 20 s, and eight times what 12 bytes take at the rate that is assumed, which a miss halves.
UNMEASURED, MISSED = 20 + 8 * 12 / 2**20, 20 + 8 * 12 / 2**19


@pytest.mark.parametrize(
    ("posted", "answered", "fate", "next_seconds"),
    [
        (False, False, DeadlineError("late"), MISSED),
        (False, True, DeadlineError("late"), MISSED),
        (False, False, UnavailableError("broken"), UNMEASURED),
        (True, False, DeadlineError("nothing was made"), UNMEASURED),
        (True, True, DeadlineError("late"), MISSED),
        (True, True, UnavailableError("broken"), UNMEASURED),
    ],
)
def test_a_missed_deadline_doubles_the_next_unless_no_version_was_made(
    fate: WireError, next_seconds: float, *, posted: bool, answered: bool
) -> None:
    bench = Bench()

    def ends() -> None:
        bench.syncer.after_call = bench.syncer.while_it_comes = lambda: None
        raise fate

    if answered:
        bench.syncer.while_it_comes = ends
    else:
        bench.syncer.after_call = ends
    _ = bench.post() if posted else bench.pull()
    bench.pull()
    assert bench.syncer.deadlines[:2] == [UNMEASURED, next_seconds]


@pytest.mark.parametrize(("posted", "measured_seconds"), [(False, 5.0), (True, 2.0)])
def test_the_rate_of_a_pull_is_measured_without_the_wait_for_its_version(
    monkeypatch: pytest.MonkeyPatch, measured_seconds: float, *, posted: bool
) -> None:
    clock, bench = clock_of("link.puller", monkeypatch), Bench(downlink=False, whole=torch.zeros(1 << 16))
    bench.syncer.after_call = lambda: setattr(clock, "now", clock.now + 3.0)
    bench.syncer.while_it_comes = lambda: setattr(clock, "now", clock.now + 2.0)
    assert bench.post() if posted else bench.pull()
    bench.pull()
    # 256 KiB at 1 MiB/s, the rate that is assumed, then as long as they took.
    assert bench.syncer.deadlines == [20.0 + 8 * 0.25, 20.0 + 8 * measured_seconds]


@pytest.mark.parametrize(
    ("downlink", "refused", "says"),
    [
        (
            True,
            PullHeader(0, 9, 13),
            (
                "the syncer offers fragment 0 at version 9, 13 bytes; asked for fragment 0 from version 9 on, 12 bytes"
                f", or its Int8 update from version 8, {CODEC.payload_bytes(3)} bytes"
            ),
        ),
        (
            False,
            PullHeader(0, 9, CODEC.payload_bytes(3), b"", "Int8", 8),
            (
                f"the syncer offers fragment 0 at version 9, its Int8 update from version 8, {CODEC.payload_bytes(3)} "
                "bytes; asked for fragment 0 from version 9 on, 12 bytes"
            ),
        ),
        (
            None,
            PullHeader(1, 9, 12),
            "the syncer offers fragment 1 at version 9, 12 bytes; asked for fragment 0 from version 9 on, 12 bytes",
        ),
    ],
    ids=["update", "no updates", "whole"],
)
def test_what_is_not_what_was_asked_for_is_told_with_both(
    caplog: pytest.LogCaptureFixture, refused: PullHeader, says: str, *, downlink: bool | None
) -> None:
    caplog.set_level(logging.DEBUG, "diloco.learner.link.puller")
    bench = Bench(refused, downlink=downlink is not False)
    bench.pull_queue.want(PullOrder(NOW, 0, 9, whole=downlink is None))
    assert len(bench.work_off()) == 1
    assert [record.getMessage() for record in caplog.records] == [f"pull of fragment 0 failed: {says}"]


@pytest.mark.parametrize("bad", [math.nan, 1e20])
def test_what_cannot_be_trained_on_is_not_swapped_in_and_told_once(
    caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    bench = Bench(downlink=False)
    bench.syncer.new = torch.tensor([1.0, bad, 2.0])
    caplog.set_level(logging.DEBUG, "diloco.learner.link.puller")
    assert bench.pull() == []
    assert bench.pull() == []
    assert (len(bench.syncer.requests), bench.counts.refused) == (2, 2)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG]
    told = caplog.records[0].getMessage()
    assert told.startswith("version 9 of fragment 0 is not swapped in: its values go from ")
    bench.syncer.new = MERGED.clone()
    (arrived,) = bench.pull()
    assert torch.equal(arrived.values, MERGED)


@pytest.mark.parametrize(("load", "least_seconds"), [(False, 600.0), (True, 20.0)])
def test_what_a_learner_loads_has_a_deadline_that_knows_no_steps(*, load: bool, least_seconds: float) -> None:
    bench = Bench()
    bench.step_seconds = 60.0
    bench.pull_queue.want(PullOrder(NOW, 0, 9, load=load))
    bench.work_off()
    assert least_seconds <= bench.syncer.deadlines[0] < least_seconds + 1.0
