"""Converts events and actions to plain JSON values and back, for the tape.

The types of ``core.events`` and ``core.actions`` define the format: a field added there is written to the tape. A field
that was added later has a default, which is used when an older tape is read.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from diloco.core import actions, events
from diloco.core.actions import Action
from diloco.core.events import Event

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}
_ACTIONS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(actions.Action)}


class RecordError(ValueError):
    """A value that is not an event or action; the text says what is wrong with it."""


def to_plain(record: Event | Action) -> dict[str, Any]:
    """``{"type": class name, field: value, ...}``, ready for JSON."""
    return {"type": type(record).__name__, **_plain_fields(record)}


def event_from(plain: Any) -> Event:
    """The event from which ``to_plain`` made ``plain``.

    Raises:
        RecordError: there is no such event, or a field is missing, unknown or of another type.
    """
    event: Event = _from_plain(plain, _EVENTS, "event")
    return event


def action_from(plain: Any) -> Action:
    """The action from which ``to_plain`` made ``plain``.

    Raises:
        RecordError: there is no such action, or a field is missing, unknown or of another type.
    """
    action: Action = _from_plain(plain, _ACTIONS, "action")
    return action


def build(kind: type[Any], plain: Any) -> Any:
    """An instance of the dataclass ``kind`` from a JSON object, each field checked for its type.

    Raises:
        RecordError: a field is missing, unknown or of another type. A field with a default may be missing, as it may be
            newer than the tape.
    """
    hints = _hints(kind)
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    if not isinstance(plain, dict) or not needed <= plain.keys() <= hints.keys():
        given = sorted(plain) if isinstance(plain, dict) else plain
        raise RecordError(f"{kind.__name__} has the fields {sorted(hints)}, not {given}")
    return kind(**{name: _value(hints[name], value, f"{kind.__name__}.{name}") for name, value in plain.items()})


def _plain_fields(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, StrEnum) else value


_hints_of: dict[str, dict[str, Any]] = {}


def _hints(kind: type[Any]) -> dict[str, Any]:
    if kind.__name__ not in _hints_of:
        _hints_of[kind.__name__] = get_type_hints(kind)
    return _hints_of[kind.__name__]


def _from_plain(plain: Any, kinds: Mapping[str, type[Any]], what: str) -> Any:
    if not isinstance(plain, dict) or plain.get("type") not in kinds:
        name = plain.get("type") if isinstance(plain, dict) else plain
        raise RecordError(f"no {what} of type {name!r}")
    return build(kinds[plain["type"]], {name: value for name, value in plain.items() if name != "type"})


def _value(hint: Any, plain: Any, where: str) -> Any:
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), plain, where)
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, plain)
    if get_origin(hint) is dict:
        if not isinstance(plain, dict):
            raise RecordError(f"{where} is {plain!r}: not an object")
        return plain
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(plain)
        except ValueError as error:
            raise RecordError(f"{where} is {plain!r}: not a {hint.__name__}") from error
    if hint is float and type(plain) is int:
        try:
            return float(plain)
        except OverflowError as error:
            raise RecordError(f"{where} is more than a float can hold") from error
    if type(plain) is not hint:
        raise RecordError(f"{where} is {plain!r}: not of type {hint.__name__}")
    return plain


def _tuple(hints: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise RecordError(f"{where} is {plain!r}: not a list")
    items = (hints[0],) * len(plain) if len(hints) == 2 and hints[1] is Ellipsis else hints
    if len(items) != len(plain):
        raise RecordError(f"{where} has {len(plain)} items: not {len(items)}")
    return tuple(_value(hint, item, where) for hint, item in zip(items, plain, strict=True))
