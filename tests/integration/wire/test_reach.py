"""Learners reach the syncer by ways of any address: the certificate has one fixed name, and they follow new addresses.

All connections are real. What stands between them passes TLS on unopened.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from diloco.runtime.files import write_atomically
from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import UnavailableError, WireError
from diloco.wire.messages import Alive, Welcome
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.tls import ServerTls
from testbed.blocking_client import BlockingClient
from testbed.kind.waiting import wait_until
from tests.integration.wire.calls import JOIN, pull
from tests.support.relays import IdleProxy, SniProxy
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_place import NAME, PAYLOAD, Place
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "job")
    with made.server:
        yield made
    assert made.server.loop_complaints == []


def names_in(certificate: ServerTls) -> list[str]:
    found = x509.load_pem_x509_certificate(certificate.certificate.read_bytes()).extensions
    return [str(one.value) for one in found.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_the_fixed_name_is_sent_and_checked_whatever_the_address(place: Place) -> None:
    assert names_in(place.syncer) == [NAME]
    port = place.server.address.rpartition(":")[2]
    with SniProxy({NAME: place.server.address}) as proxy:
        for address in (f"127.0.0.1:{port}", f"localhost:{port}", proxy.address):
            with place.client(address) as client, client.open_session(JOIN) as session:
                assert isinstance(next(iter(session)), Welcome)
                assert pull(client) == PAYLOAD
        assert set(proxy.seen) == {NAME}


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_syncer_at_every_address_serves_learners_of_both_families() -> None:
    with RunningServer(Keeper({7: PAYLOAD}), ServerOptions("[::]:0")) as server:
        port = server.address.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            with BlockingClient(ClientOptions(f"{host}:{port}")) as client:
                assert pull(client) == PAYLOAD


def test_two_jobs_behind_one_address_are_told_apart_by_their_names(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", "other")
    with other.server, SniProxy({NAME: place.server.address, other.name: other.server.address}) as proxy:
        with place.client(proxy.address) as client:
            pull(client)
        # It is let in as a learner of the other job, which then finds that the Join is for this one.
        told = pytest.raises(WireError, match="certificate is for job other")
        with other.client(proxy.address) as client, client.open_session(JOIN) as session, told:
            list(session)
        assert [peer.job for peer in place.keeper.peers] == ["job"]
        assert set(proxy.seen) == {NAME, other.name}


def test_certificates_rotate_over_another_address_while_a_session_goes_on(place: Place, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new", "new authority")
    proxy = TcpProxy(place.server.address)
    with proxy, place.client(proxy.address) as client:
        with client.open_session(JOIN) as session:
            said = iter(session)
            next(said)
            # As the operator does it: both authorities trusted, then the new one's certificates, then that alone.
            both = place.learner.ca.read_bytes() + new.certificate_path.read_bytes()
            write_atomically(place.learner.ca, both)
            fresh, learner = new.server("syncer", NAME), new.learner("job", "a/b")
            for old, made in ((place.syncer, fresh), (place.learner, learner)):
                write_atomically(old.key, made.key.read_bytes())
                write_atomically(old.certificate, made.certificate.read_bytes())
            assert pull(client) == PAYLOAD
            write_atomically(place.learner.ca, new.certificate_path.read_bytes())
            assert pull(client) == PAYLOAD
            session.send(Alive(1))
            assert next(said) is not None
        before = proxy.connections
        with client.open_session(JOIN) as session:
            assert isinstance(next(iter(session)), Welcome)
        assert proxy.connections > before
    assert names_in(fresh) == [NAME]


def test_a_new_address_in_the_file_is_followed_without_a_restart(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    first, second = TcpProxy(place.server.address), TcpProxy(place.server.address)
    with first, second, place.client(file) as client:
        with pytest.raises(UnavailableError, match="is missing; waiting for the address"):
            list(client.open_session(JOIN))
        write_atomically(file, f"{first.address}\n")
        with client.open_session(JOIN) as session:
            said = iter(session)
            next(said)
            write_atomically(file, f"{second.address}\n")
            # What works stays where it is.
            pull(client)
            session.send(Alive(1))
            assert next(said) is not None
            assert second.connections == 0
            before = first.connections
            first.cut()
            with pytest.raises(UnavailableError):
                list(said)
        with client.open_session(JOIN) as session:
            next(iter(session))
            pull(client)
        assert first.connections == before
        assert second.connections >= 2


@pytest.mark.parametrize("payload", [PAYLOAD, bytes(2 << 20)], ids=["one part", "parts"])
def test_a_transfer_that_finds_nobody_looks_for_a_new_address(place: Place, tmp_path: Path, payload: bytes) -> None:
    place.keeper.fragments[7] = payload
    file = tmp_path / "endpoint"
    with TcpProxy(place.server.address) as first:
        write_atomically(file, first.address)
        client = place.client(file)
        pull(client)
    with client, TcpProxy(place.server.address) as second:
        write_atomically(file, second.address)
        with contextlib.suppress(UnavailableError):
            pull(client)
        assert pull(client) == payload
        assert second.connections >= 1


def test_a_new_session_takes_all_connections_to_the_new_address(place: Place, tmp_path: Path) -> None:
    place.keeper.connections = 8
    file = tmp_path / "endpoint"
    first, second = TcpProxy(place.server.address), TcpProxy(place.server.address)
    with first, second, place.client(file) as client:
        write_atomically(file, first.address)
        with client.open_session(JOIN) as session:
            next(iter(session))
            pull(client)
            write_atomically(file, second.address)
            pull(client)  # what works stays where it is
            wait_until(lambda: (first.connections, second.connections) == (10, 0), "all are open")
        with client.open_session(JOIN) as session:
            next(iter(session))
            pull(client)
            assert (first.connections, second.connections) == (10, 2)
            pull(client)
            assert first.empty.wait(30), "those to the old address are closed"


def test_renewed_certificates_make_new_connections_for_transfers(place: Place) -> None:
    place.keeper.connections = 8
    with (
        TcpProxy(place.server.address) as proxy,
        place.client(proxy.address) as client,
        client.open_session(JOIN) as session,
    ):
        next(iter(session))
        pull(client)
        # The last ones may still be on their way when the pull, over the first ones, has ended.
        wait_until(lambda: proxy.connections == 9, "all are open")
        made = place.authority.learner("job", "a/b")
        write_atomically(place.learner.key, made.key.read_bytes())
        write_atomically(place.learner.certificate, made.certificate.read_bytes())
        pull(client)
        assert proxy.connections == 10


def test_a_dead_address_ends_the_session_by_keepalive(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    with TcpProxy(place.server.address) as first, TcpProxy(place.server.address) as second:
        write_atomically(file, first.address)
        with place.client(file, keepalive_seconds=0.5) as client:
            with client.open_session(JOIN) as session:
                said = iter(session)
                next(said)
                write_atomically(file, second.address)
                first.hold_answer_after_bytes(0)  # nothing comes back, and nothing ends the connection
                with pytest.raises(UnavailableError):
                    list(said)
            with client.open_session(JOIN) as session:
                next(iter(session))
            assert second.connections == 1
        first.release()


def test_the_first_attempt_to_connect_has_time_for_a_far_handshake(place: Place) -> None:
    # Of 300 ms there and back: a second attempt would be of no use either.
    with TcpProxy(place.server.address, delay_seconds=0.15) as proxy:
        with place.client(proxy.address) as client, client.open_session(JOIN) as session:
            assert isinstance(next(iter(session)), Welcome)
        assert proxy.connections == 1


def test_keepalives_outlast_the_idle_timeout_of_a_load_balancer(place: Place) -> None:
    # A load balancer's 60 s against the learner's 10 s, scaled. Connections for parts are as idle as the session's.
    place.keeper.connections = 8
    with IdleProxy(place.server.address, idle_seconds=1.2) as proxy:
        with place.client(proxy.address, keepalive_seconds=600) as client, client.open_session(JOIN) as session:
            said = iter(session)
            next(said)
            assert proxy.dropped.acquire(timeout=30), "without keepalives it drops the connection"
            with pytest.raises(UnavailableError):
                list(said)
        with place.client(proxy.address, keepalive_seconds=0.2) as client, client.open_session(JOIN) as session:
            said = iter(session)
            next(said)
            pull(client)
            assert proxy.outlasted.wait(timeout=30), "nobody says anything for more than twice the idle timeout"
            session.send(Alive(1))
            assert next(said) is not None
            assert pull(client) == PAYLOAD
        assert not proxy.dropped.acquire(blocking=False)
