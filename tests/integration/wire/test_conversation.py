"""Sessions, pushes and pulls between the real server and the real client, in the clear and over mutual TLS."""

import dataclasses
import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import (
    DeadlineError,
    InvalidMessageError,
    ProtocolVersionError,
    RefusedError,
    UnavailableError,
)
from diloco.wire.messages import Alive, FragmentWanted, Join, Leave, Welcome
from diloco.wire.server.server import ListenError, ServerOptions
from testbed.blocking_client import BlockingClient, ClosedError
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST, gets_through, pull, push
from tests.support.raw_wire import push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


def test_a_session_carries_messages_both_ways_until_the_learner_leaves(keeper: Keeper, client: BlockingClient) -> None:
    with client.open_session(JOIN) as session:
        said = iter(session)
        assert isinstance(next(said), Welcome)
        session.send(Alive(1))
        assert isinstance(next(said), FragmentWanted)
        session.send(Leave(1, "done"))
        assert list(said) == []
    assert keeper.said == [JOIN, Alive(1), Leave(1, "done")]


@pytest.mark.parametrize("payload", [b"1234", PAYLOAD], ids=["of one part", "in parts"])
def test_a_proxy_of_the_environment_is_not_used(
    server: RunningServer, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    keeper.fragments[7] = payload
    with BlockingClient(ClientOptions(server.address)) as client, client.open_session(JOIN) as session:
        assert isinstance(next(iter(session)), Welcome)
        push(client, payload)
        assert pull(client) == payload


def test_closing_a_session_still_delivers_what_was_sent(keeper: Keeper, client: BlockingClient) -> None:
    session = client.open_session(JOIN)
    session.send(Leave(1, "stopping"))
    session.close(grace_seconds=30)
    assert keeper.session_ended.wait(30)
    assert keeper.said == [JOIN, Leave(1, "stopping")]
    with pytest.raises(UnavailableError):
        session.send(Alive(1))


def test_a_refusal_arrives_as_itself_and_takes_no_memory(keeper: Keeper, client: BlockingClient) -> None:
    request = dataclasses.replace(REQUEST, fragment=8)
    with pytest.raises(RefusedError, match="no fragment 8"):
        client.pull(request, lambda _: pytest.fail("nothing to allocate"), deadline_seconds=30)
    keeper.refuse_pushes = "fragment 0 for version 1 is not wanted"
    with pytest.raises(RefusedError, match="fragment 0 for version 1 is not wanted"):
        push(client)
    assert not keeper.accepted.is_set()
    keeper.refuse_pushes = ""


def test_a_push_whose_round_is_over_is_ended_before_it_is_whole(keeper: Keeper, client: BlockingClient) -> None:
    keeper.unwanted = "it is no longer requested"
    with pytest.raises(RefusedError, match="no longer requested"):
        push(client)
    assert keeper.pushes == []
    assert [reason for _, reason in keeper.failed] == ["it is no longer requested"]
    assert keeper.buffers_in_use == 0
    keeper.unwanted = None


def test_a_header_that_does_not_fit_the_payload_is_not_sent(client: BlockingClient) -> None:
    with pytest.raises(InvalidMessageError, match="4 bytes with a header for 5"):
        push(client, b"1234", payload_bytes=5)


def test_a_buffer_that_does_not_fit_the_answer_ends_the_pull(client: BlockingClient) -> None:
    with pytest.raises(InvalidMessageError, match="a buffer of 4 bytes"):
        client.pull(REQUEST, lambda _: memoryview(bytearray(4)), deadline_seconds=30)


def test_a_deadline_ends_a_push_that_nobody_answers(keeper: Keeper, client: BlockingClient) -> None:
    keeper.answer_pushes.clear()
    with pytest.raises(DeadlineError):
        client.push(push_header(4), memoryview(b"1234"), deadline_seconds=0.5)
    keeper.answer_pushes.set()
    assert keeper.push_ended.wait(30)
    assert len(keeper.pushes) == 1  # it was whole, so it counts
    assert keeper.failed == []


def test_another_protocol_is_refused_with_both_numbers(client: BlockingClient) -> None:
    session = client.open_session(Join("job", "a/b/0", "instance", "layout", protocol=2))
    with pytest.raises(ProtocolVersionError, match="the learner speaks protocol 2, the syncer 1"):
        list(session)


def test_closing_the_client_ends_its_session(client: BlockingClient) -> None:
    session = client.open_session(JOIN)
    said = iter(session)
    next(said)
    threading.Timer(0.01, client.close).start()
    with pytest.raises(ClosedError):
        list(said)
    with pytest.raises(ClosedError, match="the client is closed"):
        push(client, b"1234")


def test_stopping_the_server_ends_sessions_and_tells_the_handler(keeper: Keeper) -> None:
    with RunningServer(keeper) as running, BlockingClient(ClientOptions(running.address)) as client:
        said = iter(client.open_session(JOIN))
        next(said)
        running.stop()
        with pytest.raises(UnavailableError):
            list(said)
        assert keeper.session_ended.wait(30)


def test_a_session_cut_off_ends_for_both_sides(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, BlockingClient(ClientOptions(proxy.address)) as client:
        session = client.open_session(JOIN)
        said = iter(session)
        next(said)
        proxy.cut()
        with pytest.raises(UnavailableError):
            list(said)
        assert keeper.session_ended.wait(30)
        with pytest.raises(UnavailableError):
            session.send(Alive(1))
        gets_through(lambda: next(iter(client.open_session(JOIN))))


def test_the_health_service_says_serving(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "diloco.wire.v1.Sync"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_busy_port_is_named(server: RunningServer, keeper: Keeper) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {server.address}: Address already in use"):
        RunningServer(keeper, ServerOptions(server.address)).__enter__()
