"""What the server counts by region, direction and kind: of whole transfers, of sessions."""

from diloco.wire.convert import pack, pack_learner
from diloco.wire.messages import Alive, LearnerMessage, Leave
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import CONNECTIONS, JOIN, PAYLOAD, PAYLOAD_IN_PARTS, PAYLOAD_PART, pull, push
from tests.support.raw_wire import RawClient, ending, part_at, push_header
from tests.support.wire_syncer import Keeper, RunningServer

CUT = push_header(len(PAYLOAD), part_bytes=PAYLOAD_PART)


def test_messages_of_a_session_are_control(keeper: Keeper, server: RunningServer, client: BlockingClient) -> None:
    said: list[LearnerMessage] = [Alive(1), Leave(1, "done")]
    with client.open_session(JOIN) as session:
        for message in said:
            session.send(message)
        told = list(session)
    assert keeper.session_ended.wait(30)
    (region,) = server.traffic.read()
    assert region.up.control == sum(len(pack_learner(message)) for message in (JOIN, *said))
    assert region.down.control >= 2 * len(told)
    assert (region.up.bulk, region.down.bulk) == (0, 0)


def test_a_push_that_is_not_wanted_counts_as_control_alone(keeper: Keeper, server: RunningServer) -> None:
    keeper.refuse_pushes = "not wanted"
    with RawClient(server.address) as raw:
        assert ending(raw.parts([pack(CUT), part_at(0, PAYLOAD[:PAYLOAD_PART])]))[1] == "not wanted"
    keeper.refuse_pushes = ""
    (region,) = server.traffic.read()
    assert region.up.control == len(pack(CUT))
    assert (region.up.bulk, region.up.again) == (0, 0)


def test_parts_are_bulk_and_what_is_said_about_them_control(server: RunningServer, joined: BlockingClient) -> None:
    push(joined)
    pull(joined)
    (region,) = server.traffic.read()
    assert (region.up.bulk, region.up.again) == (PAYLOAD_IN_PARTS, 0)
    assert (region.down.bulk, region.down.again) == (PAYLOAD_IN_PARTS, 0)
    assert CONNECTIONS * len(pack(CUT)) < region.up.control < PAYLOAD_IN_PARTS // 100
    assert 0 < region.down.control < PAYLOAD_IN_PARTS // 100


def test_a_pull_of_what_was_pulled_before_is_sent_again(server: RunningServer, joined: BlockingClient) -> None:
    for _ in range(2):
        pull(joined)
    (region,) = server.traffic.read()
    assert (region.down.bulk, region.down.again) == (PAYLOAD_IN_PARTS, PAYLOAD_IN_PARTS)
