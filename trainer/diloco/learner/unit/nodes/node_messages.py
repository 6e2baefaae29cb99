"""What the nodes of a learner say to each other before and beside training: short lines of JSON. Pure."""

import json
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Annotated, Final, TypeVar

from pydantic import Field

from diloco.runtime.json_text import JsonError, parse_json
from diloco.runtime.output import escaped
from diloco.runtime.plain import PlainError, from_plain, to_plain

LONGEST_BYTES: Final = 4096
"""Of a line (ours), its break included."""
PROTOCOL: Final = 1
_LONGEST_TEXT: Final = 512

_Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]
_Number = Annotated[int, Field(ge=0, lt=1 << 16)]


class NodeMessageError(ValueError):
    """Not a message of this version; the text is one line."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a node: who it is."""

    learner: _Text
    node: _Number
    pod: _Text
    """The uid of its pod."""
    host: _Text
    """Its name, for logs."""
    protocol: _Number = PROTOCOL


@unique
class Kind(StrEnum):
    """What is said."""

    START = "Start"
    """By the first node, once all are there. The text is a token: processes of an earlier start have another one."""
    REFUSED = "Refused"
    """Instead: why they do not go together."""
    STOPPING = "Stopping"
    """By another node: it is asked to stop."""
    OVER = "Over"
    """By the first node: the processes end in order."""
    ENDED = "Ended"
    """A process has failed; the text says which, and how."""


@dataclass(frozen=True, slots=True)
class Said:
    """Any later message."""

    kind: Kind
    text: _Text = ""
    port: _Number = 0
    """START: of the store at which all processes meet."""


_Message = TypeVar("_Message", Hello, Said)


def encoded(message: Hello | Said) -> bytes:
    """As a line. A text that is too long is cut."""
    fields = {
        name: escaped(value)[:_LONGEST_TEXT] if isinstance(value, str) else value
        for name, value in to_plain(message).items()
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def decoded(kind: type[_Message], line: bytes) -> _Message:
    """The message that was encoded.

    Raises:
        NodeMessageError: it is none of that kind.
    """
    try:
        return from_plain(kind, parse_json(line[:LONGEST_BYTES]))
    except (JsonError, PlainError) as error:
        raise NodeMessageError(f"not a message between the nodes of a learner ({error})") from error
