"""Connections for transfers in parts go where the session goes: same name, new address, new certificates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.wire.client import SyncClient
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import PullRequest
from testbed.kind.waiting import wait_until
from tests.integration.wire.calls import JOIN
from tests.support.tcp_proxy import TcpProxy
from tests.support.tls_proxies import SniProxy
from tests.support.wire_place import NAME, PAYLOAD, Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr("diloco.wire.client_parts._BROKEN_SECONDS", 0.2)
    made = Place(tmp_path / "job")
    made.keeper.connections = 8
    with made.server:
        yield made
    assert made.server.loop_complaints == []
    asked = made.keeper.asked
    assert asked
    assert all(one.transfer for one in asked), "in parts"


@contextmanager
def joined(client: SyncClient) -> Iterator[None]:
    with client.open_session(JOIN) as session:
        next(iter(session))
        yield


def pull(client: SyncClient) -> None:
    buffer = bytearray(len(PAYLOAD))
    client.pull(PullRequest("a/b/0", 1, 7, 3, "epoch"), lambda _: memoryview(buffer), deadline_seconds=30)
    assert buffer == PAYLOAD


def test_they_send_and_check_the_fixed_name(place: Place) -> None:
    with SniProxy({NAME: place.server.address}) as proxy, place.client(proxy.address) as client, joined(client):
        pull(client)
        wait_until(lambda: proxy.seen == [NAME] * 9, "the session's, and those of the parts")


def test_a_new_session_takes_them_to_the_new_address(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    first, second = TcpProxy(place.server.address), TcpProxy(place.server.address)
    with first, second, place.client(file) as client:
        write_atomically(file, first.address)
        with joined(client):
            pull(client)
            write_atomically(file, second.address)
            pull(client)  # what works stays where it is
            wait_until(lambda: (first.connections, second.connections) == (9, 0), "all are open")
        with joined(client):
            pull(client)
            assert (first.connections, second.connections) == (9, 2)
            pull(client)
            assert first.empty.wait(30), "those to the old address are closed"


def test_parts_that_find_nobody_look_for_a_new_address(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    with TcpProxy(place.server.address) as first:
        write_atomically(file, first.address)
        client = place.client(file)
        with joined(client):
            pull(client)
    with client, TcpProxy(place.server.address) as second:
        write_atomically(file, second.address)
        with pytest.raises(UnavailableError):
            pull(client)
        pull(client)
        assert second.connections == 1


def test_renewed_certificates_make_new_ones(place: Place) -> None:
    with TcpProxy(place.server.address) as proxy, place.client(proxy.address) as client, joined(client):
        pull(client)
        # The last ones may still be on their way when the pull, over the first ones, has ended.
        wait_until(lambda: proxy.connections == 9, "all are open")
        made = place.authority.learner("job", "a/b")
        write_atomically(place.learner.key, made.key.read_bytes())
        write_atomically(place.learner.certificate, made.certificate.read_bytes())
        pull(client)
        assert proxy.connections == 10
