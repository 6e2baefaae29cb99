"""Whatever a peer sends as parts: it is refused by name, and takes no memory beyond what was asked for."""

import dataclasses
import logging
import struct
import threading

import grpc
import pytest

from diloco.wire.convert import pack
from diloco.wire.part_messages import Holds, pack_holds, unpack_from_receiver
from tests.integration.wire.calls import DATA, HEADER, PART, PARTS, PULL, REQUEST, STALL_SECONDS, part
from tests.support.raw_wire import RawClient, ending, part_at, push_header
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (part_at(1, DATA[:PART]), grpc.StatusCode.INVALID_ARGUMENT, "65536 bytes at offset 1 are not one of 4 parts"),
        (part_at(4 * PART, DATA[:PART]), grpc.StatusCode.INVALID_ARGUMENT, "at offset 262144 are not one of 4 parts"),
        (part_at((1 << 64) - PART, DATA[:PART]), grpc.StatusCode.INVALID_ARGUMENT, "are not one of 4 parts"),
        (part_at(0, DATA[: PART - 1]), grpc.StatusCode.INVALID_ARGUMENT, "65535 bytes at offset 0 are not one"),
        (part_at(0, DATA[: 2 * PART]), grpc.StatusCode.INVALID_ARGUMENT, "131072 bytes at offset 0 are not one"),
        (part_at(0, bytes((1 << 20) + 1)), grpc.StatusCode.RESOURCE_EXHAUSTED, "at most 1048576 are allowed"),
        (bytes(16), grpc.StatusCode.INVALID_ARGUMENT, "a part of 16 bytes"),
        (b"", grpc.StatusCode.INVALID_ARGUMENT, "a part of 0 bytes"),
        (part_at(0, DATA[:PART], checksum=1), grpc.StatusCode.DATA_LOSS, "the checksum of part 0 does not hold"),
        (PARTS[2][:8] + PARTS[0][8:], grpc.StatusCode.DATA_LOSS, "the checksum of part 2 does not hold"),
        (part(1), grpc.StatusCode.INVALID_ARGUMENT, "part 1 of 4 came twice on one connection"),
    ],
)
def test_a_message_that_is_no_part_ends_the_call_by_name(
    keeper: Keeper, raw: RawClient, message: bytes, status: grpc.StatusCode, text: str
) -> None:
    found, said = ending(raw.parts([pack(HEADER), part(1), message]))
    assert (found, text in said) == (status, True), said
    if status is not grpc.StatusCode.DATA_LOSS:  # which may be the link's fault: the push may go on
        assert keeper.push_ended.wait(30)
        assert keeper.buffers_in_use == 0
    else:
        ending(raw.parts([pack(HEADER), *PARTS]))
        assert keeper.push_ended.wait(30)
        assert keeper.pushes[-1][1] == DATA


@pytest.mark.parametrize(
    ("payload_bytes", "part_bytes"),
    [
        (1 << 62, 1),
        (len(DATA), 1),
        (len(DATA), 0),
        (len(DATA), PART + 1),
        (len(DATA), 1 << 62),
        (0, PART),
    ],
)
def test_a_header_of_too_many_or_too_small_parts_takes_no_memory(
    keeper: Keeper, raw: RawClient, payload_bytes: int, part_bytes: int
) -> None:
    header = dataclasses.replace(push_header(payload_bytes), part_bytes=part_bytes)
    status, said = ending(raw.parts([pack(header), part(0)]))
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
    assert "bytes" in said
    assert keeper.buffers_in_use == 0
    assert not keeper.accepted.is_set()


def test_parts_that_come_again_without_end_are_ended(keeper: Keeper, raw: RawClient) -> None:
    calls = [raw.parts([pack(HEADER), part(0), part(1)]) for _ in range(4)]
    endings = [ending(call) for call in calls]
    assert any("more than 4 parts came again" in said for _, said in endings), endings
    assert all("parts" in said for _, said in endings), "the syncer ends every call, even one that has just begun"
    assert keeper.push_ended.wait(30)
    assert keeper.buffers_in_use == 0


def test_a_second_header_for_one_push_is_refused_and_the_first_goes_on(keeper: Keeper, raw: RawClient) -> None:
    first = raw.parts([pack(HEADER), part(0), part(1)])
    assert unpack_from_receiver(next(first)) == Holds([], 4)
    other = dataclasses.replace(HEADER, tokens=HEADER.tokens + 1)
    assert ending(raw.parts([pack(other), part(0)])) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "a push of fragment 0 with another header is under way",
    )
    ending(raw.parts([pack(HEADER), part(2), part(3)]))
    assert ending(first)[0] is grpc.StatusCode.OK
    ((_, received),) = keeper.pushes
    assert received == DATA


def test_more_calls_than_any_transfer_has_are_refused(
    keeper: Keeper, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.wire.server.pushes.MOST_CALLS", 2)
    with RawClient(server.address) as raw:
        calls = [raw.parts([pack(HEADER)]) for _ in range(2)]
        for call in calls:
            next(call)
        assert ending(raw.parts([pack(HEADER)])) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "2 calls bring this push already",
        )
        server.call_soon(keeper.abandon)
        assert keeper.push_ended.wait(30)


def test_a_voided_push_frees_its_buffer_at_once_on_all_connections(
    keeper: Keeper, server: RunningServer, raw: RawClient
) -> None:
    calls = [raw.parts([pack(HEADER), part(number)]) for number in range(3)]
    for call in calls:
        next(call)
        next(call)
    server.call_soon(keeper.abandon)
    assert keeper.push_ended.wait(30)
    assert keeper.buffers_in_use == 0
    ended = [ending(call) for call in calls]
    assert ended == [(grpc.StatusCode.FAILED_PRECONDITION, "it is no longer requested")] * 3
    ((_, reason),) = keeper.failed
    assert reason == "it is no longer requested"


def test_a_push_whose_connections_are_gone_is_given_up_after_a_while(keeper: Keeper, server: RunningServer) -> None:
    with RawClient(server.address) as raw:
        call = raw.parts([pack(HEADER), part(0)])
        next(call)
        next(call)
    assert keeper.push_ended.wait(30)
    ((_, reason),) = keeper.failed
    assert reason.endswith("; 3 of 4 parts are missing"), reason


@pytest.mark.parametrize(
    "said",
    [b"", b"X", pack_holds(Holds([(0, 1 << 63)])), pack_holds(Holds([(3, 2)])), struct.pack("<cQ", b"R", 0)],
)
def test_a_learner_that_holds_what_does_not_exist_is_refused(keeper: Keeper, raw: RawClient, said: bytes) -> None:
    keeper.fragments[7] = DATA
    status, text = ending(raw.parts([PULL[0], said], "PullParts"))
    assert status is grpc.StatusCode.INVALID_ARGUMENT, text


def test_a_pull_without_a_name_is_refused(keeper: Keeper, raw: RawClient) -> None:
    keeper.fragments[7] = DATA
    unnamed = dataclasses.replace(REQUEST, connections=1)
    status, text = ending(raw.parts([pack(unnamed), pack_holds(Holds([]))], "PullParts"))
    assert (status, text) == (grpc.StatusCode.INVALID_ARGUMENT, "a pull without the name of its transfer")


def test_a_late_call_of_a_pull_that_is_whole_begins_no_other(keeper: Keeper, raw: RawClient) -> None:
    keeper.fragments[7] = DATA
    status, _ = ending(raw.parts([*PULL, pack_holds(Holds([(0, 1)]))], "PullParts"))
    assert status is grpc.StatusCode.OK
    assert ending(raw.parts(PULL, "PullParts")) == (grpc.StatusCode.OK, "")
    assert len(keeper.asked) == 1


def test_a_learner_that_acknowledges_nothing_is_ended(
    keeper: Keeper, raw: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keeper.fragments[7] = DATA
    status, text = ending(raw.parts(PULL, "PullParts"))
    assert (status, text) == (grpc.StatusCode.DEADLINE_EXCEEDED, f"the learner read nothing for {STALL_SECONDS:g} s")


def test_a_learner_that_says_nothing_of_what_it_holds_is_ended(keeper: Keeper, raw: RawClient) -> None:
    keeper.fragments[7] = DATA
    status, _ = ending(raw.parts(PULL[:1], "PullParts"))
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_voided_push_and_a_new_one_do_not_meet(keeper: Keeper, server: RunningServer, raw: RawClient) -> None:
    first = raw.parts([pack(HEADER), part(0)])
    next(first)
    next(first)
    done = threading.Event()

    def abandon() -> None:
        keeper.abandon()
        done.set()

    server.call_soon(abandon)
    assert done.wait(30)
    assert keeper.push_ended.wait(30)
    changed = DATA[::-1]
    again = raw.parts([pack(HEADER), *(part(number, changed) for number in range(4))])
    ending(again)
    ((_, received),) = keeper.pushes
    assert received == changed
