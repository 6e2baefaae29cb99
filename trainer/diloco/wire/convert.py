"""Converts between typed messages and bytes; no other module uses protobuf.

Everything read is checked before it is returned: its size before parsing, then type and range of every field.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable
from functools import cache, partial
from types import GenericAlias
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from diloco.runtime.output import escaped
from diloco.wire import messages
from diloco.wire.errors import InvalidMessageError, TooLargeError
from diloco.wire.messages import LearnerMessage, Message, SyncerMessage
from diloco.wire.v1 import sync_pb2

LARGEST_MESSAGE_BYTES = 1 << 20
"""Limit for every message except parts. A vector clock of 65,536 fragments fits."""
LARGEST_NOTICE_BYTES = 1 << 16
"""Limit for what a learner sends once it is admitted, as many such messages wait at once."""
LARGEST_INTEGER = (1 << 63) - 1
LONGEST_TEXT = 4096
LONGEST_NAME = 256
"""Limit for every text except reasons: ids, digests, names."""
LONGEST_BYTES = 64
LONGEST_TUPLE = 1 << 16

_LEARNER_BODIES: dict[str, type[LearnerMessage]] = {
    "join": messages.Join,
    "ready": messages.Ready,
    "step": messages.StepReport,
    "alive": messages.Alive,
    "declined": messages.Declined,
    "applied": messages.Applied,
    "evaluation": messages.EvaluationReport,
    "leave": messages.Leave,
}
_SYNCER_BODIES: dict[str, type[SyncerMessage]] = {
    "welcome": messages.Welcome,
    "refused": messages.Refused,
    "wanted": messages.FragmentWanted,
    "ready": messages.FragmentReady,
    "evaluation": messages.EvaluationWanted,
    "progress": messages.Progress,
    "finished": messages.Finished,
    "dealt": messages.Dealt,
}
_LEARNER_NAMES = {cls: name for name, cls in _LEARNER_BODIES.items()}
_SYNCER_NAMES = {cls: name for name, cls in _SYNCER_BODIES.items()}
_MAY_BE_NAN = frozenset({"loss", "gradient_norm"})
_FOR_PEOPLE = frozenset({"reason"})
"""Text that is only displayed."""
_MAY_BE_ABSENT: Final = int | None
"""The only optional field: absence differs from 0."""

M = TypeVar("M", bound=Message)


def pack(message: Message) -> bytes:
    """A message outside a session: headers, requests and receipts of transfers.

    Raises:
        InvalidMessageError: a value is out of range.
    """
    return _to_protobuf(message).SerializeToString()


def unpack(cls: type[M], data: bytes) -> M:
    """Read what ``pack`` wrote.

    Raises:
        TooLargeError: more than ``LARGEST_MESSAGE_BYTES``.
        InvalidMessageError: not such a message, or a value is out of range.
    """
    return _from_protobuf(cls, _parse(getattr(sync_pb2, cls.__name__)(), data))


def pack_learner(message: LearnerMessage) -> bytes:
    """A message of a session, from a learner.

    Raises:
        InvalidMessageError: a value is out of range.
    """
    body: Any = {_LEARNER_NAMES[type(message)]: _to_protobuf(message)}
    return sync_pb2.LearnerMessage(**body).SerializeToString()


def pack_syncer(message: SyncerMessage) -> bytes:
    """A message of a session, from the syncer.

    Raises:
        InvalidMessageError: a value is out of range.
    """
    body: Any = {_SYNCER_NAMES[type(message)]: _to_protobuf(message)}
    return sync_pb2.SyncerMessage(**body).SerializeToString()


def unpack_learner(data: bytes) -> LearnerMessage:
    """Read what ``pack_learner`` wrote; raises as ``unpack``."""
    envelope = _parse(sync_pb2.LearnerMessage(), data)
    name = envelope.WhichOneof("body")
    if name is None:
        raise InvalidMessageError("a learner's message without a known body")
    if name != "join" and len(data) > LARGEST_NOTICE_BYTES:
        raise TooLargeError(f"{_LEARNER_BODIES[name].__name__} of {len(data)} bytes; at most {LARGEST_NOTICE_BYTES}")
    return _from_protobuf(_LEARNER_BODIES[name], getattr(envelope, name))


def unpack_syncer(data: bytes) -> SyncerMessage:
    """Read what ``pack_syncer`` wrote; raises as ``unpack``."""
    envelope = _parse(sync_pb2.SyncerMessage(), data)
    name = envelope.WhichOneof("body")
    if name is None:
        raise InvalidMessageError("a syncer's message without a known body")
    return _from_protobuf(_SYNCER_BODIES[name], getattr(envelope, name))


P = TypeVar("P", bound=Protobuf)


def _parse(message: P, data: bytes) -> P:
    name = message.DESCRIPTOR.name
    if len(data) > LARGEST_MESSAGE_BYTES:
        raise TooLargeError(f"{name} of {len(data)} bytes; at most {LARGEST_MESSAGE_BYTES} are read")
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise InvalidMessageError(f"not a {name}: {error}") from error
    return message


class _Field(NamedTuple):
    """A field of a message, as its type says."""

    name: str
    inner: Any
    """The message that it is; None: it is none."""
    many: bool
    optional: bool
    problem: Callable[[Any], str | None]
    """What is wrong with its value, or with one of its entries."""
    plain: bool
    """Its value is taken as it is if nothing is wrong with it."""


@cache
def _fields(cls: Hashable) -> tuple[_Field, ...]:
    kind: Any = cls
    hints = get_type_hints(kind)
    return tuple(_field(field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _field(name: str, hint: Any) -> _Field:
    many, optional = isinstance(hint, GenericAlias), hint == _MAY_BE_ABSENT
    kind = get_args(hint)[0] if many or optional else hint
    problems: dict[Any, Callable[[Any], str | None]] = {
        int: _problem_of_integer,
        bytes: _problem_of_bytes,
        str: partial(_problem_of_text, name),
    }
    if name not in _MAY_BE_NAN:
        problems[float] = _problem_of_number
    inner = kind if dataclasses.is_dataclass(kind) else None
    plain = inner is None and not (many or optional or name in _FOR_PEOPLE)
    return _Field(name, inner, many, optional, problems.get(kind, _no_problem), plain)


def _to_protobuf(message: Message) -> Protobuf:
    cls: Any = type(message)
    values: dict[str, Any] = {}
    for field in _fields(cls):
        value = getattr(message, field.name)
        values[field.name] = value if field.plain and not field.problem(value) else _outgoing(cls, field, value)
    try:
        made: Protobuf = getattr(sync_pb2, cls.__name__)(**values)
    except (TypeError, ValueError) as error:  # e.g. above 2**32 - 1 in a uint32
        raise InvalidMessageError(f"{cls.__name__}: {error}") from error
    return made


def _outgoing(cls: type[Any], field: _Field, value: Any) -> Any:
    if field.inner is not None:
        return _to_protobuf(value)
    if field.optional and value is None:
        return None
    return _checked(cls, field, value)


def _from_protobuf(cls: type[M], message: Protobuf) -> M:
    kinds: Any = cls
    values: dict[str, Any] = {}
    for field in _fields(kinds):
        value = getattr(message, field.name)
        values[field.name] = value if field.plain and not field.problem(value) else _incoming(cls, field, message)
    return cls(**values)


def _incoming(cls: type[Any], field: _Field, message: Protobuf) -> Any:
    name = field.name
    value = getattr(message, name)
    if field.inner is not None:
        if not message.HasField(name):
            raise InvalidMessageError(f"{cls.__name__} without {name}")
        return _from_protobuf(field.inner, value)
    if field.optional and not message.HasField(name):
        return None
    checked = _checked(cls, field, value)
    return escaped(checked) if name in _FOR_PEOPLE else checked


def _checked(cls: type[Any], field: _Field, value: Any) -> Any:
    """``value``, or its entries as a tuple, in range.

    Raises:
        InvalidMessageError: it is not.
    """
    if not field.many:
        problem = field.problem(value)
    elif len(value) > LONGEST_TUPLE:
        problem = f"has {len(value)} entries; at most {LONGEST_TUPLE} are allowed"
    else:
        value = tuple(value)
        problem = next((problem for entry in value if (problem := field.problem(entry))), None)
    if problem is not None:
        raise InvalidMessageError(f"{cls.__name__}.{field.name} {problem}")
    return value


def _no_problem(_: Any) -> None:
    return None


def _problem_of_integer(value: int) -> str | None:
    return None if 0 <= value <= LARGEST_INTEGER else f"is {value}; allowed is 0 to {LARGEST_INTEGER}"


def _problem_of_number(value: float) -> str | None:
    return None if math.isfinite(value) and value >= 0 else f"is {value}; it must be finite and not negative"


def _problem_of_bytes(value: bytes) -> str | None:
    return None if len(value) <= LONGEST_BYTES else f"has {len(value)} bytes; at most {LONGEST_BYTES} are allowed"


def _problem_of_text(name: str, value: str) -> str | None:
    most = LONGEST_TEXT if name in _FOR_PEOPLE else LONGEST_NAME
    if len(value) > most:
        return f"has {len(value)} characters; at most {most} are allowed"
    if name not in _FOR_PEOPLE and not value.isprintable():
        return f"is {value!r}; use printable characters"
    return None
