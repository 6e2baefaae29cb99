"""What a learner is told, and what is logged, if the syncer fails or refuses."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator

import grpc
import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.convert import pack_learner
from diloco.wire.errors import InvalidMessageError, RefusedError
from diloco.wire.messages import Join, LearnerMessage, PullHeader
from diloco.wire.server.handler import Send
from diloco.wire.tls.tls import Peer
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import JOIN, PULL
from tests.support.raw_wire import RawClient, ending
from tests.support.wire_syncer import Keeper, RunningServer


def test_a_fault_of_the_handler_is_an_error_of_one_line_for_the_learner(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Keeper):
        async def open_pull(self, *_: object) -> tuple[PullHeader, memoryview]:
            raise KeyError("secret internals")

    with RunningServer(Broken()) as running, RawClient(running.address) as raw:
        ended = ending(raw.parts(PULL, "PullParts"))
    assert ended == (grpc.StatusCode.INTERNAL, "the syncer failed; see its log")
    assert "secret internals" in caplog.text  # here a traceback is wanted: the fault is ours


class Strict(Keeper):
    """Ends a session in which a rule is broken, but only once the learner has hung up."""

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        await super().session(join, peer, inbound, send)
        for _ in range(20):  # the call hears of it meanwhile
            await asyncio.sleep(0)
        raise InvalidMessageError("fragment 99 of 4: they count from 0")


def test_a_learner_that_breaks_a_rule_and_hangs_up_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keeper = Strict()
    with RunningServer(keeper) as server:
        with RawClient(server.address) as client:
            call = client.session([pack_learner(Join("job", "a/b/0", "instance", "layout"))])
            next(call)
            call.cancel()
        assert keeper.session_ended.wait(30)
    gc.collect()
    assert server.loop_complaints == []
    (line,) = [record.getMessage() for record in caplog.records if "session of" in record.getMessage()]
    assert "ended: fragment 99 of 4: they count from 0" in line


def test_a_refused_learner_is_logged_but_a_fragment_that_is_late_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing(Keeper):
        async def session(self, *_: object) -> None:
            raise RefusedError("of another job")

        async def open_pull(self, *_: object) -> tuple[PullHeader, memoryview]:
            raise RefusedError("too late")

    caplog.set_level(logging.INFO)
    with RunningServer(Refusing()) as running:
        with RawClient(running.address) as raw:
            assert ending(raw.parts(PULL, "PullParts")) == (grpc.StatusCode.FAILED_PRECONDITION, "too late")
        with (
            BlockingClient(ClientOptions(running.address)) as client,
            client.open_session(JOIN) as session,
            pytest.raises(RefusedError),
        ):
            next(iter(session))
    assert "of another job" in caplog.text
    assert "too late" not in caplog.text
