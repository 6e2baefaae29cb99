"""Reads one YAML document into plain JSON values, within limits, and reports errors with their line.

PyYAML's own loaders accept duplicate keys, turn dates and ``1:30`` into objects and numbers, do not recognize ``2e-3``,
and expand aliases without limit. This reader builds only JSON values from PyYAML's events, and reads the text exactly
as kubectl does; it refuses what kubectl would read differently.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from diloco.spec.errors import Problem, SpecError

MAXIMUM_DEPTH = 32
"""Most mappings and lists inside one another."""
MAXIMUM_VALUES = 20_000
"""Most values in a document, with aliases expanded."""

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# The words that kubectl's reader (sigs.k8s.io/yaml) recognizes.
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"}
_FALSE = {"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)|0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*|(?=\.[0-9]))(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_DECIMAL = re.compile(r"-?[1-9][0-9]*|0")
# What else that reader takes for a number, without underscores: octal, binary, not finite.
_NUMBER_TO_KUBECTL = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_LONGEST_NUMBER = 64
_LARGEST_INTEGER = 2**63 - 1
_LARGEST_EXACT = 2**53
_STRING_TAGS = {"!", "tag:yaml.org,2002:str"}


@dataclass(frozen=True, slots=True)
class _Value:
    value: Json
    count: int
    """Number of values in it, including itself."""


def read_document(text: str, source: str) -> Json:
    """The value of the single document in ``text``.

    Raises:
        SpecError: with one problem, ``SOURCE:LINE: ...``.
    """
    return read_with_lines(text, source)[0]


def read_with_lines(text: str, source: str) -> tuple[Json, dict[str, int]]:
    """The same, and the line of each value by its path (``spec.regions[1].name``); not of those inside an alias.

    Raises:
        SpecError: with one problem, ``SOURCE:LINE: ...``.
    """
    reader = _Reader(text, source)
    return reader.document(), reader.lines


class _Reader:
    """A recursive-descent parser over PyYAML's events."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._events = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, _Value] = {}
        self._count = 0
        self.lines: dict[str, int] = {}

    def document(self) -> Json:
        self._next()  # the stream's start
        if isinstance(self._next(), yaml.StreamEndEvent):
            raise SpecError([Problem(self._source, "is empty; use a YAML mapping")], self._source)
        value = self._value(self._next(), 0, "").value
        self._next()  # the document's end
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            self._fail(after, "a second document begins; use one document per file")
        return value

    def _next(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._fail_at(_line(mark), f"is not valid YAML: {error.problem or error.context}")
        except yaml.reader.ReaderError as error:
            message = f"is not text: character #x{error.character:04x} is not allowed in YAML"
            raise SpecError([Problem(self._source, message)], self._source) from None

    def _value(self, event: yaml.Event, depth: int, path: str) -> _Value:
        if depth > MAXIMUM_DEPTH:
            self._fail(event, f"values are nested more than {MAXIMUM_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            # An anchor is only known once its value is complete, so no value can contain itself.
            if event.anchor not in self._anchors:
                self._fail(event, f"alias *{event.anchor} has no anchor before it")
            value = self._anchors[event.anchor]
            self._add(event, value.count)
            return value
        before = self._count
        self._add(event, 1)
        if isinstance(event, yaml.MappingStartEvent):
            plain: Json = self._mapping(event, depth, path)
        elif isinstance(event, yaml.SequenceStartEvent):
            plain = self._list(event, depth, path)
        else:
            assert isinstance(event, yaml.ScalarEvent)
            plain = self._scalar(event)
        value = _Value(plain, self._count - before)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _list(self, start: yaml.SequenceStartEvent, depth: int, path: str) -> list[Json]:
        self._refuse_tag(start)
        items: list[Json] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            place = self._place(event, f"{path}[{len(items)}]")
            items.append(self._value(event, depth + 1, place).value)
        return items

    def _mapping(self, start: yaml.MappingStartEvent, depth: int, path: str) -> dict[str, Json]:
        self._refuse_tag(start)
        own: dict[str, Json] = {}
        merged: dict[str, Json] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "a key is a list, a mapping or an alias; use text")
            key = self._key(event)
            place = self._place(event, f"{path}.{key}" if path else key)
            value = self._value(self._next(), depth + 1, place).value
            if key == "<<" and event.style is None:
                if merged:
                    self._fail(event, "key << appears twice in one mapping; use a list of aliases")
                merged = self._merge(event, value)
            elif key in own:
                self._fail(event, f"key {key} appears twice in one mapping; remove one")
            else:
                own[key] = value
        return {**merged, **own}

    def _place(self, event: yaml.Event, path: str) -> str:
        self.lines[path] = _line(event.start_mark)
        return path

    def _merge(self, event: yaml.Event, value: Json) -> dict[str, Json]:
        merged: dict[str, Json] = {}
        for part in reversed(value if isinstance(value, list) else [value]):
            if not isinstance(part, dict):
                self._fail(event, "key << is not an alias of a mapping; use one, or a list of them")
            merged.update(part)
        return merged

    def _scalar(self, event: yaml.ScalarEvent) -> Json:
        text = self._text(event)
        if event.style is not None or event.tag in _STRING_TAGS:
            return text
        self._refuse_tag(event)
        return self._plain(event, text)

    def _text(self, event: yaml.ScalarEvent) -> str:
        if any("\ud800" <= character <= "\udfff" for character in event.value):
            self._fail(event, "half a surrogate pair is not text; use the character itself")
        return event.value

    def _key(self, event: yaml.ScalarEvent) -> str:
        text = self._text(event)
        words = _NULL | _TRUE | _FALSE
        if event.style is None and (text in words or (_a_number_to_kubectl(text) and not _DECIMAL.fullmatch(text))):
            self._fail(event, f"key {text} is not text to kubectl; put it in quotes")
        return text

    def _plain(self, event: yaml.ScalarEvent, text: str) -> Json:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text) or _NUMBER.fullmatch(text):
            if len(text) > _LONGEST_NUMBER:
                self._fail(event, f"a number has {len(text)} characters; use at most {_LONGEST_NUMBER}, or quotes")
            number = _number(text)
            if abs(number) > _LARGEST_INTEGER if isinstance(number, int) else math.isinf(number):
                self._fail(event, f"{text} is more than 64 bits can hold; use a smaller number, or quotes")
            return number
        if _a_number_to_kubectl(text):
            self._fail(event, f"{text} is not read as a number by every YAML parser; use decimal notation, or quotes")
        return text

    def _refuse_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None and event.tag != "!":
            self._fail(event, f"tag {event.tag} is not allowed; use plain values")

    def _add(self, event: yaml.Event, count: int) -> None:
        self._count += count
        if self._count > MAXIMUM_VALUES:
            self._fail(event, f"holds more than {MAXIMUM_VALUES} values, aliases counted in full")

    def _fail(self, event: yaml.Event, message: str) -> NoReturn:
        self._fail_at(_line(event.start_mark), message)

    def _fail_at(self, line: int, message: str) -> NoReturn:
        raise SpecError([Problem(f"{self._source}:{line}", message)], self._source) from None


def _line(mark: Any) -> int:
    # PyYAML has two classes of marks; both count lines from 0, editors from 1.
    return mark.line + 1 if mark is not None else 1


def _a_number_to_kubectl(text: str) -> bool:
    return not text.startswith("_") and _NUMBER_TO_KUBECTL.fullmatch(text.replace("_", "")) is not None


def _number(text: str) -> int | float:
    if _INTEGER.fullmatch(text):
        return int(text, 16 if text.startswith("0x") else 10)
    value = float(text)
    # People write a budget as 2e6, and JSON does not distinguish it from 2000000.
    if "e" in text.lower() and abs(value) < _LARGEST_EXACT and value.is_integer():
        return int(value)
    return value
