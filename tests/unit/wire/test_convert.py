import contextlib
import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.wire import messages
from diloco.wire.convert import (
    LARGEST_INTEGER,
    LARGEST_MESSAGE_BYTES,
    pack,
    pack_learner,
    pack_syncer,
    unpack,
    unpack_learner,
    unpack_syncer,
)
from diloco.wire.errors import InvalidMessageError, TooLargeError, WireError
from diloco.wire.messages import (
    Alive,
    Applied,
    Declined,
    EvaluationReport,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    HeldWanted,
    Join,
    Leave,
    Progress,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    Ready,
    Refused,
    StepReport,
    Welcome,
)
from diloco.wire.v1 import sync_pb2

LEARNER_MESSAGES = (
    Join("job", "a/b/0", "instance", "digest", "3", (1, 2, LARGEST_INTEGER), 4, 5, held_epoch="3.ab", held=(0, 2)),
    Ready(1),
    StepReport(1, 2, 3, 0.5, 0.25, 10.5, 6, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5),
    Alive(LARGEST_INTEGER),
    Declined(1, 2, 3, 4),
    Applied(1, 2, 3, 4),
    EvaluationReport(1, 2, 3.5, exact=True),
    Leave(1, "SIGTERM"),
)
SYNCER_MESSAGES = (
    Welcome(1, "3", (0, 2, 1), (4, 5, 6), 7, 8, Progress(1, 2, 3), posted_pulls=True),
    Refused("Superseded", "another process"),
    FragmentWanted(1, 2, 3),
    FragmentReady(1, 2, merged=True, progress=Progress(0, 0, 0)),
    EvaluationWanted(1, (1, 2), final=True),
    Progress(1, 2, 3),
    Finished(complete=True, reason="trained"),
    HeldWanted(3, 9, 2),
)
BULK_MESSAGES = (
    PushHeader("a/b/0", 1, 2, 3, 4, 5, 6, 7, "Int4", 8, "3", bytes(16)),
    PushReceipt(accepted=False, reason="late"),
    PullRequest("a/b/0", 1, 2, 3, "3", 0, posted=True),
    PullHeader(1, 2, 3, bytes(range(16)), "Int8", 1, bytes(range(16, 32))),
)


@pytest.mark.parametrize("message", LEARNER_MESSAGES, ids=lambda message: type(message).__name__)
def test_what_a_learner_says_arrives_as_said(message: messages.LearnerMessage) -> None:
    assert unpack_learner(pack_learner(message)) == message


@pytest.mark.parametrize("message", SYNCER_MESSAGES, ids=lambda message: type(message).__name__)
def test_what_the_syncer_says_arrives_as_said(message: messages.SyncerMessage) -> None:
    assert unpack_syncer(pack_syncer(message)) == message


@pytest.mark.parametrize("message", BULK_MESSAGES, ids=lambda message: type(message).__name__)
def test_bulk_headers_arrive_as_sent(message: messages.Message) -> None:
    assert unpack(type(message), pack(message)) == message


def test_that_nothing_is_said_of_what_is_held_is_not_that_version_0_is() -> None:
    silent = PullRequest("a/b/0", 1, 2, 3, "3")
    assert unpack(PullRequest, pack(silent)) == silent
    assert silent.held_version is None
    with pytest.raises(InvalidMessageError, match=r"PullRequest\.held_version is -1"):
        pack(PullRequest("a/b/0", 1, 2, 3, "3", -1))
    with pytest.raises(InvalidMessageError, match=r"PullRequest\.held_version is"):
        unpack(PullRequest, sync_pb2.PullRequest(held_version=1 << 63).SerializeToString())


def test_peers_that_do_not_know_updates_and_posted_pulls_are_understood() -> None:
    # As the version before wrote them: fields 1 to 5 of a request, 1 to 4 of a header, 1 to 7 of a Welcome.
    request = unpack(PullRequest, b"\n\x05a/b/0\x10\x01\x18\x02 \x03*\x013")
    assert request == PullRequest("a/b/0", 1, 2, 3, "3")
    assert not request.posted
    header = unpack(PullHeader, b"\x08\x01\x10\x02\x18\x03")
    assert header == PullHeader(1, 2, 3)
    assert header.codec == ""
    welcome = unpack_syncer(b"\n\x0f\x08\x01\x12\x013(\x07:\x06\x08\x01\x10\x02\x18\x03")
    assert isinstance(welcome, Welcome)
    assert not welcome.posted_pulls


@pytest.mark.parametrize("message", LEARNER_MESSAGES + SYNCER_MESSAGES + BULK_MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_has_the_fields_of_its_protobuf(message: messages.Message) -> None:
    descriptor = getattr(sync_pb2, type(message).__name__).DESCRIPTOR
    assert {field.name for field in dataclasses.fields(message)} == set(descriptor.fields_by_name)


def test_no_message_of_the_protocol_is_missing() -> None:
    known = {type(message).__name__ for message in LEARNER_MESSAGES + SYNCER_MESSAGES + BULK_MESSAGES}
    assert known == set(sync_pb2.DESCRIPTOR.message_types_by_name) - {"LearnerMessage", "SyncerMessage"}
    assert all(hasattr(messages, name) for name in known)


def test_what_a_learner_of_an_earlier_version_does_not_tell_is_zero() -> None:
    # As bytes: field 3 of LearnerMessage is a StepReport of its first three fields, field 6 an Applied likewise.
    assert unpack_learner(bytes.fromhex("1a06080110021803")) == StepReport(1, 2, 3, 0.0, 0.0, 0.0, 0)
    assert unpack_learner(bytes.fromhex("3206080110021803")) == Applied(1, 2, 3)


def test_a_diverged_loss_can_be_said() -> None:
    said = unpack_learner(pack_learner(StepReport(1, 2, 3, 0.5, 0.0, math.nan, 6)))
    assert isinstance(said, StepReport)
    assert math.isnan(said.loss)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (sync_pb2.LearnerMessage(alive=sync_pb2.Alive(incarnation=1 << 63)), "Alive.incarnation"),
        (sync_pb2.LearnerMessage(step=sync_pb2.StepReport(step_seconds=math.nan)), "StepReport.step_seconds"),
        (sync_pb2.LearnerMessage(step=sync_pb2.StepReport(blocked_seconds=-1)), "StepReport.blocked_seconds"),
        (sync_pb2.LearnerMessage(step=sync_pb2.StepReport(loading_seconds=math.inf)), "StepReport.loading_seconds"),
        (sync_pb2.LearnerMessage(leave=sync_pb2.Leave(reason="x" * 5000)), "Leave.reason"),
        (sync_pb2.LearnerMessage(join=sync_pb2.Join(versions=[1] * 65_537)), "Join.versions"),
        (sync_pb2.LearnerMessage(), "body"),
        (sync_pb2.LearnerMessage(join=sync_pb2.Join(learner="a/b/0\n12:00:00 gone")), r"Join\.learner is 'a/b/0\\n"),
        (sync_pb2.LearnerMessage(join=sync_pb2.Join(instance="\x1b[2J")), r"Join\.instance is '\\x1b"),
        (sync_pb2.LearnerMessage(join=sync_pb2.Join(learner="x" * 257)), r"Join\.learner has 257 characters"),
    ],
)
def test_a_value_out_of_range_is_named(message: sync_pb2.LearnerMessage, named: str) -> None:
    with pytest.raises(InvalidMessageError, match=named):
        unpack_learner(message.SerializeToString())


def test_a_reason_is_one_line_whatever_it_says() -> None:
    said = unpack_learner(sync_pb2.LearnerMessage(leave=sync_pb2.Leave(reason="off\n\x1b[2Jgone")).SerializeToString())
    assert said == Leave(0, "off\\n\\x1b[2Jgone")


def test_a_digest_of_absurd_length_is_named() -> None:
    with pytest.raises(InvalidMessageError, match=r"PullHeader\.payload_digest has 1000 bytes"):
        unpack(PullHeader, sync_pb2.PullHeader(payload_digest=bytes(1000)).SerializeToString())


def test_a_message_inside_a_message_must_be_there() -> None:
    ready = sync_pb2.SyncerMessage(ready=sync_pb2.FragmentReady(fragment=1))
    with pytest.raises(InvalidMessageError, match="FragmentReady without progress"):
        unpack_syncer(ready.SerializeToString())


def test_what_cannot_be_said_is_not_sent() -> None:
    with pytest.raises(InvalidMessageError, match="FragmentWanted"):
        pack_syncer(FragmentWanted(1 << 40, 1, 1))
    with pytest.raises(InvalidMessageError, match=r"Ready\.incarnation is -1"):
        pack_learner(Ready(-1))


def test_a_large_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLargeError, match=str(LARGEST_MESSAGE_BYTES)):
        unpack_learner(b"\xff" * (LARGEST_MESSAGE_BYTES + 1))


@given(st.binary(max_size=200))
def test_garbage_is_a_message_or_a_wire_error(data: bytes) -> None:
    for read in (
        unpack_learner,
        unpack_syncer,
        lambda d: unpack(PushHeader, d),
        lambda d: unpack(PullRequest, d),
        lambda d: unpack(PullHeader, d),
    ):
        with contextlib.suppress(WireError):
            read(data)
