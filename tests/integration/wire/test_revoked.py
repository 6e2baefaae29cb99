"""Revoked certificates at a real server: refused at once, sessions and transfers under way included, and replaced."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.wire.errors import RevokedError, UnavailableError
from diloco.wire.messages import Alive, Join, Welcome
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import JOIN, pull, push
from tests.support.wire_place import Place

EVERY_ONE = "2999-01-01T00:00:00Z"
OTHER = Join("job", "a/c/0", "instance", "layout")
TOLD = "the certificate of pool a/b has been revoked"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "job")
    with made.server:
        yield made
    assert made.server.loop_complaints == []
    assert made.keeper.buffers_in_use == 0


@pytest.fixture
def client(place: Place) -> Iterator[BlockingClient]:
    """Of pool a/b."""
    with place.client() as made:
        yield made


def revoke(place: Place, before: str = EVERY_ONE) -> None:
    write_atomically(place.syncer.revoked, f"a/b {before}\n")


def again(call: Callable[[], object]) -> None:
    """Call as a learner does, again after an error that is none for good.

    gRPC loses the syncer's answer to a call that ends while the learner writes to it.
    """
    while True:
        with contextlib.suppress(UnavailableError):
            call()
            return


def test_open_sessions_end_and_new_calls_are_refused_but_not_another_pools(
    place: Place, client: BlockingClient
) -> None:
    with place.client(tls=place.tls(place.authority.learner("job", "a/c", "other"))) as other:
        with client.open_session(JOIN) as session, other.open_session(OTHER) as others:
            said, heard = iter(session), iter(others)
            next(said)
            next(heard)
            revoke(place)
            with pytest.raises(RevokedError, match=TOLD):
                list(said)
            assert place.keeper.session_ended.wait(30)
            others.send(Alive(1))
            assert next(heard) is not None
        with client.open_session(JOIN) as session, pytest.raises(RevokedError, match=TOLD):
            list(session)
        for call in (push, pull):
            with pytest.raises(RevokedError, match=TOLD):
                again(partial(call, client))
        assert pull(other, learner="a/c/0")


def test_a_push_that_waits_for_its_receipt_ends_and_what_arrived_counts(place: Place, client: BlockingClient) -> None:
    place.keeper.answer_pushes.clear()
    with ThreadPoolExecutor(1) as thread:
        pushing = thread.submit(push, client, b"1234")
        assert place.keeper.accepted.wait(30)
        revoke(place)
        with pytest.raises(RevokedError, match=TOLD):
            pushing.result(30)
    place.keeper.answer_pushes.set()
    assert place.keeper.push_ended.wait(30)


def test_a_certificate_that_is_newer_than_the_revocation_is_accepted(place: Place, client: BlockingClient) -> None:
    revoke(place, "2000-01-01T00:00:00Z")
    with client.open_session(JOIN) as session:
        assert isinstance(next(iter(session)), Welcome)
