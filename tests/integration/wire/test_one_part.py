"""Payloads of one part: each is one exchange, and whatever a peer sends instead is refused by name."""

import dataclasses
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from diloco.wire.convert import pack
from diloco.wire.messages import PullHeader, PushReceipt
from diloco.wire.part_messages import pack_receipt
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import DATA, PART, PAYLOAD, REQUEST, STALL_SECONDS, part, pull, push
from tests.support.raw_wire import RawClient, ending, part_at, push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

SHORT = os.urandom(800_000)
ONE = push_header(PART, part_bytes=PART)


def test_a_header_and_a_part_go_each_way(keeper: Keeper, server: RunningServer, joined: BlockingClient) -> None:
    keeper.fragments[7] = SHORT
    joined.client._earlier.pulled_bytes[7] = len(SHORT)
    pull(joined)
    (before,) = server.traffic.read()
    assert pull(joined) == SHORT
    push(joined, SHORT)
    (after,) = server.traffic.read()
    assert after.down.again - before.down.again == after.up.bulk == len(SHORT) + 16
    asked = len(pack(REQUEST))
    header = dataclasses.replace(push_header(len(SHORT)), part_bytes=13 * PART)
    assert after.up.control - before.up.control == asked + len(pack(header))
    told = len(pack(PullHeader(7, 3, len(SHORT), part_bytes=13 * PART))) + len(pack_receipt(PushReceipt(accepted=True)))
    assert after.down.control - before.down.control == told


def test_a_receipt_that_was_lost_is_given_again(keeper: Keeper, server: RunningServer, joined: BlockingClient) -> None:
    for _ in range(2):
        push(joined, SHORT)
    assert len(keeper.pushes) == 1
    (region,) = server.traffic.read()
    assert (region.up.bulk, region.up.again) == (len(SHORT) + 16, 0)


def test_what_is_cut_comes_whole_afterwards(keeper: Keeper, proxy: TcpProxy, joined: BlockingClient) -> None:
    keeper.fragments[7] = SHORT
    pull(joined)
    for transfer in (lambda: push(joined, SHORT), lambda: pull(joined)):
        proxy.was_cut.clear()
        proxy.cut_after_bytes(len(SHORT) // 2)
        transfer()
        assert proxy.was_cut.is_set()
    assert keeper.pushes[-1][1] == SHORT
    assert pull(joined) == SHORT


@pytest.mark.parametrize("what", ["push", "pull"])
def test_its_receiver_knows_of_it_before_all_has_come(
    keeper: Keeper, proxy: TcpProxy, joined: BlockingClient, what: str
) -> None:
    keeper.fragments[7] = SHORT
    pull(joined)
    begun, buffer = keeper.accepted if what == "push" else threading.Event(), memoryview(bytearray(len(SHORT)))

    def allocate(_: PullHeader) -> memoryview:
        begun.set()
        return buffer

    proxy.stall_one_after_bytes(len(SHORT) // 2)
    with ThreadPoolExecutor(1) as pool:
        if what == "push":
            done: Future[Any] = pool.submit(push, joined, SHORT)
        else:
            done = pool.submit(joined.pull, REQUEST, allocate, deadline_seconds=30)
        assert proxy.stalled.wait(30)
        assert begun.wait(30)
        proxy.release()
        done.result(30)


def test_a_fragment_may_become_longer_than_a_part_and_shorter_again(keeper: Keeper, joined: BlockingClient) -> None:
    for content in (SHORT, SHORT, PAYLOAD, PAYLOAD, SHORT):
        keeper.fragments[7] = content
        assert pull(joined) == content


@pytest.mark.parametrize(
    ("header", "messages", "end"),
    [
        (b"\xff\xff\xff", [], (grpc.StatusCode.INVALID_ARGUMENT, "not a PushHeader")),
        (pack(ONE), [b""], (grpc.StatusCode.INVALID_ARGUMENT, "a part of 0 bytes")),
        (
            pack(ONE),
            [part(0)[:-1]],
            (grpc.StatusCode.INVALID_ARGUMENT, "65535 bytes at offset 0 are not one of 1 parts"),
        ),
        (pack(ONE), [part(0) + part(1)], (grpc.StatusCode.INVALID_ARGUMENT, "131088 bytes at offset 0 are not one of")),
        (pack(ONE), [part_at(0, DATA[:PART], 1)], (grpc.StatusCode.DATA_LOSS, "checksum of part 0 does not hold")),
    ],
    ids=["garbage", "no part", "short", "two", "changed"],
)
def test_a_push_that_is_wrong_is_refused_by_name(
    keeper: Keeper, raw: RawClient, header: bytes, messages: list[bytes], end: tuple[grpc.StatusCode, str]
) -> None:
    found, said = ending(raw.parts([header, *messages]))
    assert (found, end[1] in said) == (end[0], True), said
    if keeper.accepted.is_set():
        assert keeper.push_ended.wait(30)
    assert keeper.buffers_in_use == 0


def test_a_part_that_was_changed_may_come_again(keeper: Keeper, raw: RawClient) -> None:
    ending(raw.parts([pack(ONE), part_at(0, DATA[:PART], 1)]))
    assert ending(raw.parts([pack(ONE), part(0)]))[0] is grpc.StatusCode.OK
    assert (keeper.pushes, keeper.failed) == ([(keeper.pushes[0][0], DATA[:PART])], [])


def test_a_call_that_says_nothing_is_ended(keeper: Keeper, raw: RawClient) -> None:
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    assert ending(raw.parts([], "PullParts")) == (late, f"no request came within {STALL_SECONDS:g} s")
    missing = f"nothing arrived for {STALL_SECONDS:g} s; 1 of 1 parts are missing"
    assert ending(raw.parts([pack(ONE)])) == (late, missing)
    assert keeper.push_ended.wait(30)
    assert ending(raw.parts([])) == (grpc.StatusCode.INVALID_ARGUMENT, "a push without a header")
