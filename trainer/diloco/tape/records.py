"""Converts events and actions to plain JSON values and back, for the tape.

The types of ``core.engine.events`` and ``core.engine.actions`` define the format: a field added there is written to the
tape. A field that was added after 0.1.0 has a default, which is used when an older tape is read.
"""

from collections.abc import Mapping
from typing import Any, get_args

from diloco.core.engine import actions, events
from diloco.core.engine.actions import Action
from diloco.core.engine.events import Event
from diloco.runtime.plain import PlainError, from_plain, shown
from diloco.runtime.plain import to_plain as fields_of

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}
_ACTIONS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(actions.Action)}


def to_plain(record: Event | Action) -> dict[str, Any]:
    """``{"type": class name, field: value, ...}``, ready for JSON."""
    return {"type": type(record).__name__, **fields_of(record)}


def event_from(plain: Any) -> Event:
    """The event from which ``to_plain`` made ``plain``.

    Raises:
        PlainError: there is no such event, or a field is missing, unknown or of another type.
    """
    event: Event = _from(plain, _EVENTS, "event")
    return event


def action_from(plain: Any) -> Action:
    """The action from which ``to_plain`` made ``plain``.

    Raises:
        PlainError: there is no such action, or a field is missing, unknown or of another type.
    """
    action: Action = _from(plain, _ACTIONS, "action")
    return action


def _from(plain: Any, kinds: Mapping[str, type[Any]], what: str) -> Any:
    name = plain.get("type") if isinstance(plain, dict) else plain
    kind = kinds.get(name) if isinstance(plain, dict) and isinstance(name, str) else None
    if kind is None:
        raise PlainError(f"no {what} of type {shown(name)}")
    return from_plain(kind, {field: value for field, value in plain.items() if field != "type"})
