import dataclasses
import json
from typing import Any, get_args

import pytest

from diloco.core import actions, events
from diloco.core.actions import Admit, Member, Merge, Note, Refusal, Refuse
from diloco.core.events import FragmentApplied, LearnerJoined, StepReported
from diloco.core.time_spent import TimeSpent
from diloco.tape.records import RecordError, action_from, event_from, to_plain

MEMBER = Member("a/b/0", 7, 1, 3, 4, 256, 0.25, "ab")
EXAMPLES: list[Any] = [
    LearnerJoined("a/b/0", "x", (1, 2), 3, 4),
    StepReported("a/b/0", 7, 1, 64, 0.125, 0.0, 5.5, 16, TimeSpent(training=0.5, loading=2.0)),
    Admit("a/b/0", "x", 7, (0, 1), (3, 3), 5, 80, "first join"),
    Refuse("a/b/0", "x", Refusal.SUPERSEDED, "another"),
    Merge(2, 4, (MEMBER, MEMBER), "quorum"),
    actions.Broadcast(2, 4, (("a/b/0", 7, True), ("a/b/1", 8, False)), "merged"),
    Note("RoundOpened", "due"),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_what_goes_through_json_comes_back_equal(record: Any) -> None:
    plain = json.loads(json.dumps(to_plain(record)))
    read = event_from if isinstance(record, get_args(events.Event)) else action_from
    assert read(plain) == record


def test_a_tape_from_before_a_field_was_added_is_read_with_its_default() -> None:
    report, applied = StepReported("a/b/0", 7, 1, 64, 0.125, 0.0, 5.5, 16), FragmentApplied("a/b/0", 7, 2, 4)
    for event, added in ((report, "spent"), (applied, "step")):
        plain = to_plain(event)
        del plain[added]
        assert event_from(plain) == event


def test_a_field_that_was_always_there_must_be_there() -> None:
    plain = to_plain(EXAMPLES[1])
    del plain["loss"]
    with pytest.raises(RecordError, match="has the fields"):
        event_from(plain)


def test_every_event_and_action_has_only_fields_that_can_be_read_back() -> None:
    for kind in (*get_args(events.Event), *get_args(actions.Action)):
        assert isinstance(kind, type)
        assert dataclasses.is_dataclass(kind)
        with pytest.raises(RecordError, match="has the fields"):
            (event_from if kind.__module__.endswith("events") else action_from)({"type": kind.__name__, "no": 1})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": "Exec"}, "no event of type 'Exec'"),
        ({"steps": "3"}, r"LearnerJoined\.steps is '3'"),
        ({"steps": True}, r"LearnerJoined\.steps is True"),
        ({"versions": 3}, r"LearnerJoined\.versions is 3: not a list"),
        ({"versions": [1, None]}, r"LearnerJoined\.versions is None"),
        ({"extra": 1}, "has the fields"),
    ],
)
def test_a_value_of_another_type_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(RecordError, match=text):
        event_from(to_plain(EXAMPLES[0]) | change)


def test_a_name_that_is_no_refusal_is_named() -> None:
    with pytest.raises(RecordError, match=r"Refuse\.refusal is 'Tired'"):
        action_from(to_plain(EXAMPLES[3]) | {"refusal": "Tired"})
    with pytest.raises(RecordError, match="has 2 items"):
        action_from(to_plain(EXAMPLES[5]) | {"learners": [["a", 1]]})
    with pytest.raises(RecordError, match="no action of type \\[]"):
        action_from([])
