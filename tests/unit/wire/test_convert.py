import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.core.account.time_spent import TimeSpent
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
from diloco.wire.v1 import sync_pb2

LEARNER_MESSAGES = (
    messages.Join(
        "job",
        "a/b/0",
        "instance",
        "digest",
        "3",
        (1, 2, LARGEST_INTEGER),
        4,
        5,
        sequences=7,
        dealt=(8, 9, 10),
    ),
    messages.Ready(1),
    messages.StepReport(1, 2, 3, 0.5, 10.5, 6, TimeSpent(1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5), 9.5, 10),
    messages.Alive(LARGEST_INTEGER),
    messages.Declined(1, 2, 3, 4),
    messages.Applied(1, 2, 3, 4),
    messages.EvaluationReport(1, 2, 3.5, exact=True),
    messages.Leave(1, "SIGTERM"),
)
SYNCER_MESSAGES = (
    messages.Welcome(1, "3", (0, 2, 1), (4, 5, 6), 7, 8, messages.Progress(1, 2, 3)),
    messages.Refused("Superseded", "another process"),
    messages.FragmentWanted(1, 2, 3),
    messages.FragmentReady(1, 2, merged=True, progress=messages.Progress(0, 0, 0)),
    messages.EvaluationWanted(1, (1, 2), final=True),
    messages.Progress(1, 2, 3),
    messages.Finished(complete=True, reason="trained"),
    messages.Dealt(4, 5, 6),
)
BULK_MESSAGES = (
    messages.PushHeader("a/b/0", 1, 2, 3, 4, 5, 6, 7, "Int4", 8, "3", bytes(16), 9, 10, 11),
    messages.PushReceipt(accepted=False, reason="late"),
    messages.PullRequest("a/b/0", 1, 2, 3, "3", 0, posted=True),
    messages.PullHeader(1, 2, 3, bytes(range(16)), "Int8", 1, bytes(range(16, 32))),
)


THERE_AND_BACK: tuple[tuple[messages.Message, Callable[[Any], Any]], ...] = (
    *((message, lambda said: unpack_learner(pack_learner(said))) for message in LEARNER_MESSAGES),
    *((message, lambda said: unpack_syncer(pack_syncer(said))) for message in SYNCER_MESSAGES),
    *((message, lambda said: unpack(type(said), pack(said))) for message in BULK_MESSAGES),
)


@pytest.mark.parametrize(
    ("message", "sent"), THERE_AND_BACK, ids=[type(message).__name__ for message, _ in THERE_AND_BACK]
)
def test_what_is_said_arrives_as_said_with_every_field_of_its_protobuf(
    message: messages.Message, sent: Callable[[Any], Any]
) -> None:
    assert sent(message) == message
    descriptor = getattr(sync_pb2, type(message).__name__).DESCRIPTOR
    assert {field.name for field in dataclasses.fields(message)} == set(descriptor.fields_by_name)


def test_that_nothing_is_said_of_what_is_held_is_not_that_version_0_is() -> None:
    silent = messages.PullRequest("a/b/0", 1, 2, 3, "3")
    assert unpack(messages.PullRequest, pack(silent)) == silent
    assert silent.held_version is None
    with pytest.raises(InvalidMessageError, match=r"PullRequest\.held_version is -1"):
        pack(messages.PullRequest("a/b/0", 1, 2, 3, "3", -1))
    with pytest.raises(InvalidMessageError, match=r"PullRequest\.held_version is"):
        unpack(messages.PullRequest, sync_pb2.PullRequest(held_version=1 << 63).SerializeToString())


def test_no_message_of_the_protocol_is_missing() -> None:
    known = {type(message).__name__ for message, _ in THERE_AND_BACK}
    assert known == set(sync_pb2.DESCRIPTOR.message_types_by_name) - {"LearnerMessage", "SyncerMessage", "TimeSpent"}
    assert all(hasattr(messages, name) for name in known)


def test_a_diverged_loss_can_be_said() -> None:
    said = unpack_learner(pack_learner(messages.StepReport(1, 2, 3, 0.5, math.nan, 6, gradient_norm=math.nan)))
    assert isinstance(said, messages.StepReport)
    assert math.isnan(said.loss)
    assert math.isnan(said.gradient_norm)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (sync_pb2.LearnerMessage(alive=sync_pb2.Alive(incarnation=1 << 63)), "Alive.incarnation"),
        (sync_pb2.LearnerMessage(step=sync_pb2.StepReport(step_seconds=math.nan)), "StepReport.step_seconds"),
        (sync_pb2.LearnerMessage(step=sync_pb2.StepReport()), "StepReport without spent"),
        (
            sync_pb2.LearnerMessage(step=sync_pb2.StepReport(spent=sync_pb2.TimeSpent(paused=-1))),
            "TimeSpent.paused",
        ),
        (
            sync_pb2.LearnerMessage(step=sync_pb2.StepReport(spent=sync_pb2.TimeSpent(loading=math.inf))),
            "TimeSpent.loading",
        ),
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
    assert said == messages.Leave(0, "off\\n\\x1b[2Jgone")


def test_a_digest_of_absurd_length_is_named() -> None:
    with pytest.raises(InvalidMessageError, match=r"PullHeader\.payload_digest has 1000 bytes"):
        unpack(messages.PullHeader, sync_pb2.PullHeader(payload_digest=bytes(1000)).SerializeToString())


def test_what_cannot_be_said_is_not_sent() -> None:
    with pytest.raises(InvalidMessageError, match="FragmentWanted"):
        pack_syncer(messages.FragmentWanted(1 << 40, 1, 1))
    with pytest.raises(InvalidMessageError, match=r"Ready\.incarnation is -1"):
        pack_learner(messages.Ready(-1))


def test_a_large_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLargeError, match=str(LARGEST_MESSAGE_BYTES)):
        unpack_learner(b"\xff" * (LARGEST_MESSAGE_BYTES + 1))


@given(st.binary(max_size=200))
def test_garbage_is_a_message_or_a_wire_error(data: bytes) -> None:
    for read in (
        unpack_learner,
        unpack_syncer,
        lambda d: unpack(messages.PushHeader, d),
        lambda d: unpack(messages.PullRequest, d),
        lambda d: unpack(messages.PullHeader, d),
    ):
        with contextlib.suppress(WireError):
            read(data)
