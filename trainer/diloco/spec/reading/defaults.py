"""The defaults that an operator passes on, so that an image of another version trains as the operator says.

The API server fills in every default of the operator's version. Beside the values that differ from them, a process's
manifest has these defaults in an annotation, by the path of their section: ``{"spec.regions[].pools[]": {"x": 1}}``. A
process fills in those that it knows. It does not know the fields of newer versions, which change nothing by default.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, TypeAdapter

from diloco.spec.job import DiLoCoJob

ANNOTATION: Final = "diloco.dev/defaults"
_EACH: Final = "[]"

Defaults = dict[str, dict[str, Any]]
_DEFAULTS: Final[TypeAdapter[Defaults]] = TypeAdapter(Defaults)


def left_out(full: Mapping[str, Any], given: Mapping[str, Any], path: str = "spec") -> Defaults:
    """What ``full``, a whole section, says beyond ``given``, the same section without defaults.

    A section that is a default itself is ``{}`` in its parent's entry and has an entry of its own.
    """
    found: Defaults = {}
    for name, value in full.items():
        below = f"{path}.{name}"
        if isinstance(value, dict):
            if name not in given:
                found.setdefault(path, {})[name] = {}
            _add(found, left_out(value, given.get(name, {}), below))
        elif name in given:
            for one, its in zip(*(_sections(side[name]) for side in (full, given)), strict=True):
                _add(found, left_out(one, its, below + _EACH))
        elif value is not None:
            found.setdefault(path, {})[name] = value
    return found


def _add(found: Defaults, more: Defaults) -> None:
    for path, values in more.items():
        found.setdefault(path, {}).update(values)


def _sections(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def fill_in(document: Any) -> None:
    """Set what is missing in a manifest to the defaults that its annotation names, as far as this version has them.

    Anything else than an operator writes is left as it is, for the reader of the manifest to refuse or to ignore.
    """
    try:
        passed = _DEFAULTS.validate_json(document["metadata"]["annotations"][ANNOTATION], strict=True)
    except (KeyError, TypeError, ValueError):
        return
    for path, values in sorted(passed.items(), key=lambda one: one[0].count(".")):  # a section comes into being first
        names = path.split(".")
        known = _fields(names)
        for section in _places(document, names):
            section.update({name: value for name, value in values.items() if name in known and name not in section})


def _places(section: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    if not isinstance(section, dict):
        return
    if not names:
        yield section
        return
    value = section.get(names[0].removesuffix(_EACH))
    for one in value if isinstance(value, list) else [value]:
        yield from _places(one, names[1:])


def _fields(names: list[str]) -> set[str]:
    """The names of the fields that this version has at a path; none if it lacks the section."""
    section: type[BaseModel] = DiLoCoJob
    for name in names:
        below = {field.alias or key: field.annotation for key, field in section.model_fields.items()}
        found = next(_models(below.get(name.removesuffix(_EACH))), None)
        if found is None:
            return set()
        section = found
    return {field.alias or key for key, field in section.model_fields.items()}


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for one in get_args(kind):
        yield from _models(one)
