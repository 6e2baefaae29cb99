"""Revoked certificates at a real server: refused at once, sessions and transfers under way included, and replaced."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.wire.certificates import Authority
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import RevokedError
from diloco.wire.messages import Alive, Join, PullRequest, Welcome
from diloco.wire.server import ServerOptions
from diloco.wire.tls import ClientTls, ServerTls
from tests.integration.wire.calls import JOIN
from tests.support.raw_wire import push_header
from tests.support.wire_syncer import Keeper, RunningServer

EVERY_ONE = "2999-01-01T00:00:00Z"
OTHER = Join("job", "a/c/0", "instance", "layout")
TOLD = "the certificate of pool a/b has been revoked"


class World:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.syncer: ServerTls = self.authority.server()
        self.keeper = Keeper({7: b"1234"})
        self.server = RunningServer(self.keeper, ServerOptions("127.0.0.1:0", tls=self.syncer, job="job"))

    def learner(self, pool: str) -> ClientTls:
        return self.authority.learner("job", pool, pool.replace("/", "."))

    def client(self, pool: str = "a/b") -> SyncClient:
        return SyncClient(ClientOptions(self.server.address, tls=self.learner(pool)))

    def revoke(self, pool: str, before: str = EVERY_ONE) -> None:
        write_atomically(self.syncer.revoked, f"{pool} {before}\n")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.server:
        yield made
    assert made.server.loop_complaints == []
    assert made.keeper.buffers_in_use == 0


def test_open_sessions_end_and_new_calls_are_refused_but_not_another_pools(world: World) -> None:
    with world.client() as client, world.client("a/c") as other:
        with client.open_session(JOIN) as session, other.open_session(OTHER) as others:
            said, heard = iter(session), iter(others)
            next(said)
            next(heard)
            world.revoke("a/b")
            with pytest.raises(RevokedError, match=TOLD):
                list(said)
            assert world.keeper.session_ended.wait(30)
            others.send(Alive(1))
            assert next(heard) is not None
        with client.open_session(JOIN) as session, pytest.raises(RevokedError, match=TOLD):
            list(session)
        with pytest.raises(RevokedError, match=TOLD):
            client.push(push_header(4), memoryview(b"1234"), deadline_seconds=30)
        with pytest.raises(RevokedError, match=TOLD):
            client.pull(PullRequest("a/b/0", 1, 7, 3, "epoch"), lambda _: memoryview(bytearray(4)), deadline_seconds=30)
        other.pull(PullRequest("a/c/0", 1, 7, 3, "epoch"), lambda _: memoryview(bytearray(4)), deadline_seconds=30)


def test_a_push_that_waits_for_its_receipt_ends_and_what_arrived_counts(world: World) -> None:
    world.keeper.answer_pushes.clear()
    failed: list[RevokedError] = []
    with world.client() as client:

        def push() -> None:
            try:
                client.push(push_header(4), memoryview(b"1234"), deadline_seconds=30)
            except RevokedError as error:
                failed.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        assert world.keeper.accepted.wait(30)
        world.revoke("a/b")
        pushing.join(30)
        assert [TOLD in str(error) for error in failed] == [True]
        world.keeper.answer_pushes.set()
        assert world.keeper.push_ended.wait(30)


def test_a_certificate_that_is_newer_than_the_revocation_is_accepted(world: World) -> None:
    with world.client() as client:
        world.revoke("a/b", "2000-01-01T00:00:00Z")
        with client.open_session(JOIN) as session:
            assert isinstance(next(iter(session)), Welcome)
