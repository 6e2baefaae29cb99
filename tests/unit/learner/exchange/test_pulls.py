"""Pulls: what they request, what they refuse to receive, how they apply an update, and which goes first."""

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.orders import Membership, Wakeup
from diloco.learner.exchange.pulls import Pulls, ReceiveOptions
from diloco.learner.exchange.transfers import TransferCounts
from diloco.runtime.process.busy import BusyMeter, Moved
from diloco.wire.errors import CorruptedError, DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import PullHeader, PullRequest, PushReceipt
from tests.support.hand_clock import HandClock, clock_of
from tests.support.hand_loop import HandLoop
from tests.unit.learner.exchange.pulls import BASE, CODEC, MERGED, NOW, Bench
from tests.unit.learner.exchange.pushes import context_of


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
    [(7, True, (), 7), (8, False, (), None), (8, True, (0,), None)],
    ids=["another version", "a job without updates", "to be loaded"],
)
def test_a_fragment_is_taken_whole_where_an_update_is_of_no_use(
    holds: int, load: tuple[int, ...], held: int | None, *, downlink: bool
) -> None:
    bench = Bench(holds=holds, downlink=downlink)
    (arrival,) = bench.pull(load=load)
    assert [request.held_version for request in bench.syncer.requests] == [held]
    assert torch.equal(arrival.values, bench.syncer.new)
    assert (bench.counts.updates, bench.counts.bytes_pulled) == (0, 12)


def test_what_is_held_of_another_epoch_is_no_base() -> None:
    bench = Bench()
    restarted = Membership("2", 1)
    bench.holdings.admitted(restarted, [0])
    bench.pulls.session_begins(restarted)
    (arrival,) = bench.work_off(lambda: bench.pulls.want(0, 9))
    assert [request.held_version for request in bench.syncer.requests] == [None]
    assert arrival.epoch == "2"


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
    (arrival,) = bench.post()
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

    def over() -> None:
        if len(bench.syncer.requests) > 1:
            bench.pulls.session_over()

    bench.syncer.after_call = over
    bench.syncer.fates.append(UnavailableError("broken"))
    assert bench.pull() == []
    assert bench.buffers == 0


def test_a_pull_is_tried_again_while_its_admission_lasts() -> None:
    bench = Bench(UnavailableError("broken"), CorruptedError("a checksum"))
    (arrival,) = bench.pull()
    assert (arrival.version, bench.counts.retries) == (9, 2)


def test_a_version_that_is_being_swapped_in_is_not_pulled() -> None:
    bench = Bench()
    # The notice comes while the posted pull is arriving, so that the order waits for it.
    bench.syncer.while_it_comes = lambda: bench.pulls.want(0, 9)
    (arrival,) = bench.post()  # which is being copied into the model
    assert bench.work_off(lambda: bench.pulls.want(0, 9)) == []
    bench.holdings.received(arrival)
    assert bench.pull() == []
    assert len(bench.syncer.requests) == 1


def test_a_version_that_was_swapped_in_may_have_to_be_loaded_again() -> None:
    bench = Bench()
    bench.post()
    assert bench.work_off(lambda: bench.pulls.want(0, 9)) == []
    assert len(bench.pull(load=(0,))) == 1
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
    assert len(bench.syncer.requests) == 1


@pytest.mark.parametrize("fate", [RefusedError("not made in time"), UnavailableError("broken"), DeadlineError("")])
def test_a_failed_post_takes_no_memory_and_the_notice_still_pulls(fate: WireError) -> None:
    bench = Bench(fate)
    assert bench.post() == []
    assert (bench.buffers, bench.counts.retries) == (0, 0)
    (arrival,) = bench.pull()
    assert arrival.version == 9


def test_a_post_that_broke_off_while_it_was_answered_is_pulled_at_once() -> None:
    bench = Bench()
    bench.syncer.while_it_comes = bench.syncer.breaks_off
    (arrival,) = bench.post()
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
    clock, bench = clock_of("exchange.pulls", monkeypatch), Bench(downlink=False, whole=torch.zeros(1 << 16))
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
    caplog.set_level(logging.DEBUG, "diloco.learner.exchange.pulls")
    bench = Bench(refused, downlink=downlink is not False)
    assert len(bench.pull(whole=downlink is None)) == 1
    assert [record.getMessage() for record in caplog.records] == [f"pull of fragment 0 failed: {says}"]


@pytest.mark.parametrize("bad", [math.nan, 1e20])
def test_what_cannot_be_trained_on_is_not_swapped_in_and_told_once(
    caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    bench = Bench(downlink=False)
    bench.syncer.new = torch.tensor([1.0, bad, 2.0])
    caplog.set_level(logging.DEBUG, "diloco.learner.exchange.pulls")
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
    bench.pull(load=(0,) * load)
    assert least_seconds <= bench.syncer.deadlines[0] < least_seconds + 1.0


class Waiting:
    """A link whose pulls wait until the test answers them; each is told apart by what was asked for."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int, bool], asyncio.Future[None]] = {}
        """By fragment, version, and whether it is posted; those under way."""
        self.withdrawn: list[int] = []

    async def push(self, *_: object, **__: object) -> PushReceipt:
        raise AssertionError("a push is not expected here")

    async def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        del deadline_seconds
        asked = request.fragment, request.minimum_version, request.posted
        assert asked not in self.answers
        self.answers[asked] = asyncio.get_running_loop().create_future()
        try:
            await self.answers[asked]
        except asyncio.CancelledError:
            self.withdrawn.append(request.fragment)
            raise
        finally:
            del self.answers[asked]
        header = PullHeader(request.fragment, request.minimum_version, 4)
        allocate(header)[:] = bytes(4)
        return header


class Turns:
    """Pulls of six fragments, all of which are held at version 0."""

    def __init__(self) -> None:
        self.loop, self.link = HandLoop(), Waiting()
        self.holdings = Holdings(Wakeup(), 6)
        self.holdings.admitted(NOW, [])
        for fragment in range(6):
            self.holdings.received(MergedFragment("1", fragment, 0, torch.zeros(1)))
        context = context_of(self.link, TransferCounts())
        options = ReceiveOptions((1,) * 6, lambda _: torch.zeros(1), None)
        self.pulls = Pulls(context, self.holdings, options)
        self.pulls.session_begins(NOW)

    @property
    def under_way(self) -> list[tuple[int, int, bool]]:
        return list(self.link.answers)

    def does(self, *calls: Callable[[], object]) -> list[tuple[int, int, bool]]:
        """Do these; returns what is under way once nothing is left to do."""
        for call in calls:
            self.loop.call_soon(call)
        self.loop.work()
        return self.under_way

    def arrives(self, fragment: int, version: int, *, posted: bool = False) -> list[tuple[int, int, bool]]:
        """Answer it, and swap in what has come; returns what is under way then."""
        self.link.answers[fragment, version, posted].set_result(None)
        self.loop.work()
        for arrival in self.holdings.take():
            self.holdings.received(arrival)
        return self.under_way


def test_four_are_pulled_at_once_and_then_the_newest_order_goes_first() -> None:
    turns = Turns()
    begun = turns.does(*(partial(turns.pulls.want, fragment, 1) for fragment in range(6)))
    assert begun == [(fragment, 1, False) for fragment in range(4)]
    assert turns.does(lambda: turns.pulls.want(4, 2)) == begun  # which it replaces
    assert turns.arrives(0, 1)[-1] == (4, 2, False)
    assert turns.arrives(1, 1)[-1] == (5, 1, False)


def test_what_is_to_be_loaded_goes_before_newer_versions_and_in_order() -> None:
    turns = Turns()
    turns.does(*(partial(turns.pulls.want, fragment, 1) for fragment in range(4)))
    turns.does(*(partial(turns.pulls.want, fragment, 2, load=True) for fragment in (4, 5)))
    turns.does(lambda: turns.pulls.want(0, 2))
    assert turns.arrives(1, 1)[-1] == (4, 2, False)
    assert turns.arrives(2, 1)[-1] == (5, 2, False)


def test_a_newer_version_waits_for_the_pull_under_way_and_an_older_is_not() -> None:
    turns = Turns()
    assert turns.does(*(partial(turns.pulls.want, 0, version) for version in (5, 6, 5))) == [(0, 5, False)]
    assert turns.arrives(0, 5) == [(0, 6, False)]
    assert turns.arrives(0, 6) == []


def test_a_notice_waits_for_the_post_of_its_version_and_pulls_nothing_then() -> None:
    turns = Turns()
    assert turns.does(lambda: turns.pulls.post(0, 5), lambda: turns.pulls.want(0, 5)) == [(0, 5, True)]
    assert turns.arrives(0, 5, posted=True) == []


@pytest.mark.parametrize(("version", "whole"), [(4, False), (5, True)], ids=["earlier", "whole"])
def test_what_a_post_does_not_bring_is_pulled_beside_it(version: int, *, whole: bool) -> None:
    turns = Turns()
    turns.does(lambda: turns.pulls.post(0, 5))
    assert turns.does(lambda: turns.pulls.want(0, version, whole=whole)) == [(0, 5, True), (0, version, False)]


def test_a_fragment_is_posted_once_for_each_version_and_the_next_waits() -> None:
    turns = Turns()
    assert turns.does(*(partial(turns.pulls.post, 0, version) for version in (5, 5, 6, 6))) == [(0, 5, True)]
    assert turns.arrives(0, 5, posted=True) == [(0, 6, True)]
    turns.does(lambda: turns.pulls.post(0, 7))
    turns.does(lambda: turns.pulls.want(0, 7))  # it exists: there is nothing to wait for
    assert turns.arrives(0, 6, posted=True) == [(0, 7, False)]


def test_the_end_of_a_session_withdraws_all_and_the_next_begins_anew() -> None:
    turns = Turns()
    turns.does(*(partial(turns.pulls.want, fragment, 5) for fragment in range(5)), lambda: turns.pulls.post(5, 5))
    assert turns.does(turns.pulls.session_over) == []
    assert sorted(turns.link.withdrawn) == [0, 1, 2, 3, 5]
    assert turns.does(lambda: turns.pulls.want(0, 5), lambda: turns.pulls.post(1, 5)) == []
    later = Membership("1", 8)
    turns.pulls.session_begins(later)
    assert turns.does(lambda: turns.pulls.want(0, 5)) == [(0, 5, False)]
