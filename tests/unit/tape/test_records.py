import dataclasses
from typing import Any, get_args

import pytest

from diloco.core.engine import actions, events
from diloco.runtime.plain import PlainError
from diloco.tape.records import action_from, event_from


def test_every_event_and_action_has_only_fields_that_can_be_read_back() -> None:
    for kind in (*get_args(events.Event), *get_args(actions.Action)):
        assert isinstance(kind, type)
        assert dataclasses.is_dataclass(kind)
        with pytest.raises(PlainError, match=rf"{kind.__name__}\.no is 1: Unexpected"):
            (event_from if kind.__module__.endswith("events") else action_from)({"type": kind.__name__, "no": 1})


@pytest.mark.parametrize(
    ("plain", "text"),
    [([], r"\[]"), ("Merge", "'Merge'"), ({}, "None"), ({"type": "Exec"}, "'Exec'"), ({"type": 3}, "3")],
)
def test_what_is_no_record_is_named(plain: Any, text: str) -> None:
    with pytest.raises(PlainError, match=f"no action of type {text}"):
        action_from(plain)
