"""Sessions, pushes and pulls between the real server and the real client, in the clear and over mutual TLS."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from diloco.wire.certificates import Authority
from diloco.wire.chunks import payload_digest
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import (
    ClosedError,
    DeadlineError,
    IdentityError,
    InvalidMessageError,
    ProtocolVersionError,
    RefusedError,
    UnavailableError,
)
from diloco.wire.messages import Alive, FragmentWanted, Join, Leave, PullHeader, PullRequest, PushReceipt, Welcome
from diloco.wire.server import ListenError, ServerOptions, SyncServer
from diloco.wire.tls import ClientTls
from tests.integration.wire.calls import JOIN
from tests.support.raw_wire import push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

PAYLOAD = os.urandom((5 << 20) + 3)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper({7: PAYLOAD})


@pytest.fixture
def server(keeper: Keeper) -> Iterator[RunningServer]:
    with RunningServer(keeper) as running:
        yield running
    assert running.loop_complaints == []


def pull_request(fragment: int = 7, *, learner: str = "a/b/0") -> PullRequest:
    return PullRequest(learner, 1, fragment, 3, "epoch")


def test_a_session_carries_messages_both_ways_until_the_learner_leaves(keeper: Keeper, client: SyncClient) -> None:
    with client.open_session(JOIN) as session:
        said = iter(session)
        assert isinstance(next(said), Welcome)
        session.send(Alive(1))
        assert isinstance(next(said), FragmentWanted)
        session.send(Leave(1, "done"))
        assert list(said) == []
    assert keeper.said == [JOIN, Alive(1), Leave(1, "done")]


def test_closing_a_session_still_delivers_what_was_sent(keeper: Keeper, client: SyncClient) -> None:
    session = client.open_session(JOIN)
    session.send(Leave(1, "stopping"))
    session.close(grace_seconds=30)
    assert keeper.session_ended.wait(30)
    assert keeper.said == [JOIN, Leave(1, "stopping")]
    with pytest.raises(UnavailableError):
        session.send(Alive(1))


def test_a_push_arrives_whole_with_its_digest(keeper: Keeper, server: RunningServer, client: SyncClient) -> None:
    header = push_header(len(PAYLOAD))
    assert client.push(header, memoryview(PAYLOAD), deadline_seconds=30) == PushReceipt(accepted=True)
    ((received, payload),) = keeper.pushes
    assert payload == PAYLOAD
    assert received.payload_digest == payload_digest(memoryview(PAYLOAD))
    assert server.traffic.read()[0].up.bulk >= len(PAYLOAD)


def test_a_payload_of_no_bytes_can_be_pushed_and_pulled(keeper: Keeper, client: SyncClient) -> None:
    keeper.fragments[0] = b""
    assert client.push(push_header(0), memoryview(b""), deadline_seconds=30).accepted
    assert client.pull(pull_request(0), lambda _: memoryview(bytearray()), deadline_seconds=30).payload_bytes == 0


def test_a_pull_fills_the_buffer_it_is_given(server: RunningServer, client: SyncClient) -> None:
    buffer = bytearray(len(PAYLOAD))
    header = client.pull(pull_request(), lambda _: memoryview(buffer), deadline_seconds=30)
    assert header == PullHeader(7, 3, len(PAYLOAD), payload_digest(memoryview(PAYLOAD)))
    assert buffer == PAYLOAD
    assert server.traffic.read()[0].down.bulk >= len(PAYLOAD)


def test_transfers_at_once_have_connections_of_their_own(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address, bulk_channels=3)) as client:
        with client.open_session(JOIN) as session:
            next(iter(session))
            start = threading.Barrier(3)

            def push(fragment: int) -> None:
                start.wait()
                client.push(push_header(len(PAYLOAD), fragment=fragment), memoryview(PAYLOAD), deadline_seconds=60)

            threads = [threading.Thread(target=push, args=(fragment,)) for fragment in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert proxy.connections == 4  # one for control
    assert {header.fragment for header, payload in keeper.pushes if payload == PAYLOAD} == {0, 1, 2}


def test_a_refusal_arrives_as_itself_and_takes_no_memory(keeper: Keeper, client: SyncClient) -> None:
    with pytest.raises(RefusedError, match="no fragment 8"):
        client.pull(pull_request(8), lambda _: pytest.fail("nothing to allocate"), deadline_seconds=30)
    keeper.refuse_pushes = "fragment 0 for version 1 is not wanted"
    with pytest.raises(RefusedError, match="fragment 0 for version 1 is not wanted"):
        client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
    assert not keeper.accepted.is_set()


def test_a_push_whose_round_is_over_is_ended_before_it_is_whole(keeper: Keeper, client: SyncClient) -> None:
    keeper.unwanted = "it is no longer requested"
    with pytest.raises(RefusedError, match="no longer requested"):
        client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
    assert keeper.pushes == []
    assert [reason for _, reason in keeper.failed] == ["it is no longer requested"]
    assert keeper.buffers_in_use == 0


def test_a_header_that_does_not_fit_the_payload_is_not_sent(client: SyncClient) -> None:
    with pytest.raises(InvalidMessageError, match="4 bytes with a header for 5"):
        client.push(push_header(5), memoryview(b"1234"), deadline_seconds=30)


def test_a_buffer_that_does_not_fit_the_answer_ends_the_pull(client: SyncClient) -> None:
    with pytest.raises(InvalidMessageError, match="a buffer of 4 bytes"):
        client.pull(pull_request(), lambda _: memoryview(bytearray(4)), deadline_seconds=30)


def test_what_allocate_raises_reaches_the_caller(client: SyncClient) -> None:
    def no_memory(_: PullHeader) -> memoryview:
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        client.pull(pull_request(), no_memory, deadline_seconds=30)


def test_a_deadline_ends_a_push_that_nobody_answers(keeper: Keeper, client: SyncClient) -> None:
    keeper.answer_pushes.clear()
    with pytest.raises(DeadlineError):
        client.push(push_header(4), memoryview(b"1234"), deadline_seconds=0.5)
    keeper.answer_pushes.set()
    assert keeper.push_ended.wait(30)
    assert len(keeper.pushes) == 1  # it was whole, so it counts
    assert keeper.failed == []


def test_another_protocol_is_refused_with_both_numbers(client: SyncClient) -> None:
    session = client.open_session(Join("job", "a/b/0", "instance", "layout", protocol=2))
    with pytest.raises(ProtocolVersionError, match="the learner speaks protocol 2, the syncer 1"):
        list(session)


def test_nobody_there_is_unavailable() -> None:
    with SyncClient(ClientOptions("127.0.0.1:1")) as client:
        with pytest.raises(UnavailableError):
            list(client.open_session(JOIN))
        with pytest.raises(UnavailableError):
            client.push(push_header(4), memoryview(b"1234"), deadline_seconds=30)


def test_closing_the_client_ends_its_session(client: SyncClient) -> None:
    session = client.open_session(JOIN)
    said = iter(session)
    next(said)
    threading.Timer(0.01, client.close).start()
    with pytest.raises(ClosedError):
        list(said)
    with pytest.raises(ClosedError, match="the client is closed"):
        client.push(push_header(4), memoryview(b"1234"), deadline_seconds=30)


def test_stopping_the_server_ends_sessions_and_tells_the_handler(keeper: Keeper) -> None:
    with RunningServer(keeper) as running, SyncClient(ClientOptions(running.address)) as client:
        said = iter(client.open_session(JOIN))
        next(said)
        running.stop()
        with pytest.raises(UnavailableError):
            list(said)
        assert keeper.session_ended.wait(30)


def test_the_health_service_says_serving(server: RunningServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "diloco.wire.v1.Sync"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_busy_port_is_named(server: RunningServer, keeper: Keeper) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {server.address}: Address already in use"):
        RunningServer(keeper, ServerOptions(server.address)).__enter__()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"chunk_bytes": 0}, "chunk_bytes"), ({"stall_seconds": 0.0}, "stall_seconds"), ({"address": "x"}, "address")],
)
def test_an_impossible_option_is_named(keeper: Keeper, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SyncServer(keeper, ServerOptions(**{"address": "127.0.0.1:0", **options}))  # type: ignore[arg-type] # bad on purpose


class TestMutualTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path)

    @pytest.fixture
    def address(self, authority: Authority, keeper: Keeper) -> Iterator[str]:
        options = ServerOptions("127.0.0.1:0", tls=authority.server(), job="job")
        with RunningServer(keeper, options) as running:
            yield running.address
        assert running.loop_complaints == []

    @staticmethod
    def push_as(address: str, tls: ClientTls | None, learner: str) -> PushReceipt:
        with SyncClient(ClientOptions(address, tls=tls)) as client:
            header = push_header(len(PAYLOAD), learner=learner)
            return client.push(header, memoryview(PAYLOAD), deadline_seconds=30)

    def test_a_learner_with_its_certificate_is_served(self, authority: Authority, address: str, keeper: Keeper) -> None:
        tls = authority.learner("job", "a/b/0")
        with SyncClient(ClientOptions(address, tls=tls)) as client, client.open_session(JOIN) as session:
            assert isinstance(next(iter(session)), Welcome)
            assert self.push_as(address, tls, "a/b/0").accepted
            buffer = bytearray(len(PAYLOAD))
            client.pull(pull_request(), lambda _: memoryview(buffer), deadline_seconds=30)
            assert buffer == PAYLOAD
        assert {(peer.job, peer.learner) for peer in keeper.peers} == {("job", "a/b/0")}

    def test_a_learner_cannot_speak_for_another(self, authority: Authority, address: str, keeper: Keeper) -> None:
        tls = authority.learner("job", "a/b/1")
        with SyncClient(ClientOptions(address, tls=tls)) as client:
            with pytest.raises(IdentityError, match="learner a/b/1, the message says a/b/0"):
                list(client.open_session(JOIN))
            with pytest.raises(IdentityError, match="learner a/b/1, the message says a/b/0"):
                client.pull(pull_request(), lambda _: memoryview(b""), deadline_seconds=30)
        with pytest.raises(IdentityError, match="learner a/b/1, the message says a/b/0"):
            self.push_as(address, tls, "a/b/0")
        assert keeper.peers == []

    def test_a_learner_of_another_job_is_refused(self, authority: Authority, address: str) -> None:
        with pytest.raises(IdentityError, match="for job other; this is job job"):
            self.push_as(address, authority.learner("other", "a/b/0"), "a/b/0")

    def test_a_certificate_that_names_no_learner_is_refused(self, authority: Authority, address: str) -> None:
        with pytest.raises(IdentityError, match="names no learner"):
            self.push_as(address, authority.nobody(), "a/b/0")

    def test_a_certificate_of_another_authority_does_not_connect(
        self, authority: Authority, address: str, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other").learner("job", "a/b/0")
        trusting = ClientTls(authority.certificate_path, stranger.certificate, stranger.key)
        for tls in (stranger, trusting, None):
            with pytest.raises(UnavailableError):
                self.push_as(address, tls, "a/b/0")
