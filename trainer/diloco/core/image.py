"""The engine's whole state as plain JSON, and back: a replay can begin with it in the middle of an epoch.

A snapshot (`snapshot`) is for a restarted syncer, so it leaves out sessions and rounds under way. An image leaves out
nothing but the options, so an engine made from it decides exactly as the one that it was taken from. The dataclasses of
the state define the format. Each is written as a list of its values, and the names of its fields are written once. A
field that was added later has a default, which is used when an older image is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from diloco.core.options import EngineOptions
from diloco.core.state import EngineState

FORMAT = 1
_NOT_IN_IT = ("options", "epoch")

_Tables = dict[str, list[str]]
"""By dataclass: the names of its fields, in the order of the values."""
_Encode = Callable[[Any, _Tables], Any]
_Decode = Callable[[Any, _Tables, str], Any]


class ImageError(ValueError):
    """A value is not an image of an engine's state, or a later version of diloco took it."""


def take(state: EngineState) -> dict[str, Any]:
    """The state as plain JSON. It shares nothing that can change with ``state``."""
    tables: _Tables = {}
    return {"format": FORMAT, "state": _encoder(EngineState)(state, tables), "fields": tables}


def restore(options: EngineOptions, epoch: int, image: Any) -> EngineState:
    """The state of an image.

    Raises:
        ImageError: it is not an image, of another format, or of a model cut into another number of fragments.
    """
    if not isinstance(image, dict) or image.keys() != {"format", "state", "fields"}:
        raise ImageError("engine state: has not the fields format, state and fields")
    if image["format"] != FORMAT:
        raise ImageError(f"engine state: format {image['format']!r}; this version reads {FORMAT}")
    tables = image["fields"]
    if not isinstance(tables, dict) or not all(_is_names(names) for names in tables.values()):
        raise ImageError("engine state: fields is not an object of lists of names")
    given = _values_by_name(EngineState, image["state"], tables, "engine state")
    state = EngineState(options=options, epoch=epoch, **given)
    count = options.schedule.fragments
    if not len(state.versions) == len(state.fragment_tokens) == count:
        raise ImageError(f"engine state: {len(state.versions)} fragments, the job has {count}")
    return state


def _is_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    written = [one.name for one in fields(kind) if not (kind is EngineState and one.name in _NOT_IN_IT)]
    return {name: hints[name] for name in written}


@cache
def _encoder(hint: Any) -> _Encode:  # noqa: PLR0911 - a table of types
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        some = _encoder(_optional(hint))
        return lambda value, tables: None if value is None else some(value, tables)
    if is_dataclass(hint):
        return _dataclass_encoder(hint)
    if origin in (set, frozenset):
        return lambda value, _: sorted(value)
    if origin is list or (origin is tuple and inner[-1] is Ellipsis):
        item = _encoder(inner[0])
        if inner[0] in (int, float, str, bool):
            return lambda value, _: list(value)
        return lambda value, tables: [item(one, tables) for one in value]
    if origin is tuple:
        return lambda value, _: list(value)
    if origin in (dict, Mapping):  # in its order: some decisions go through learners in it
        of = _encoder(inner[1])
        return lambda value, tables: [
            [str(key) if _is_word(inner[0]) else key, of(value[key], tables)] for key in value
        ]
    if _is_word(hint):
        return lambda value, _: str(value)
    return lambda value, _: value


def _dataclass_encoder(kind: Any) -> _Encode:
    encoders = [(name, _encoder(hint)) for name, hint in _hints(kind).items()]
    names = [name for name, _ in encoders]

    def encode(value: Any, tables: _Tables) -> list[Any]:
        tables.setdefault(kind.__name__, names)
        return [of(getattr(value, name), tables) for name, of in encoders]

    return encode


@cache
def _decoder(hint: Any) -> _Decode:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        some = _decoder(_optional(hint))
        return lambda plain, tables, where: None if plain is None else some(plain, tables, where)
    if is_dataclass(hint):
        kind: Any = hint
        return lambda plain, tables, where: kind(**_values_by_name(kind, plain, tables, where))
    if origin in (set, frozenset, list) or (origin is tuple and inner[-1] is Ellipsis):
        item = _decoder(inner[0])
        collect: Any = origin
        return lambda plain, tables, where: collect(item(one, tables, where) for one in _list(plain, where))
    if origin is tuple:
        items = [_decoder(one) for one in inner]
        return lambda plain, tables, where: tuple(
            of(one, tables, where) for of, one in zip(items, _list(plain, where, len(items)), strict=True)
        )
    if origin in (dict, Mapping):
        key_of, of = _decoder(inner[0]), _decoder(inner[1])
        return lambda plain, tables, where: {
            key_of(key, tables, where): of(value, tables, where)
            for key, value in (_list(pair, where, 2) for pair in _list(plain, where))
        }
    return _word_decoder(hint) if _is_word(hint) else _scalar_decoder(hint)


def _word_decoder(kind: Any) -> _Decode:
    def decode(plain: Any, _: _Tables, where: str) -> Any:
        try:
            return kind(plain)
        except ValueError as error:
            raise ImageError(f"{where} is {plain!r}: not a {kind.__name__}") from error

    return decode


def _scalar_decoder(kind: Any) -> _Decode:
    def decode(plain: Any, _: _Tables, where: str) -> Any:
        if kind is float and type(plain) is int:
            try:
                return float(plain)
            except OverflowError as error:
                raise ImageError(f"{where} is more than a float can hold") from error
        if type(plain) is not kind:
            raise ImageError(f"{where} is {plain!r}: not of type {kind.__name__}")
        return plain

    return decode


def _values_by_name(kind: Any, plain: Any, tables: _Tables, where: str) -> dict[str, Any]:
    names, hints = tables.get(kind.__name__, []), _hints(kind)
    if unknown := [name for name in names if name not in hints]:
        raise ImageError(
            f"engine state: {kind.__name__} has no field {unknown[0]!r}: a later version of diloco took it"
        )
    values = dict(zip(names, _list(plain, where, len(names)), strict=True))
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    if missing := (needed & hints.keys()) - values.keys():
        raise ImageError(f"engine state: {kind.__name__} lacks the field {min(missing)!r}")
    return {name: _decoder(hints[name])(value, tables, f"{kind.__name__}.{name}") for name, value in values.items()}


def _list(plain: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(plain, list) or (length is not None and len(plain) != length):
        raise ImageError(f"{where} is not a list" + ("" if length is None else f" of {length} values"))
    return plain


def _optional(hint: Any) -> Any:
    """``X`` of ``X | None``."""
    (some,) = (one for one in get_args(hint) if one is not NoneType)
    return some


def _is_word(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, StrEnum)
