"""Checks across fields, of a manifest in which some fields are wrong by themselves: those that read none of these."""

import json
from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from diloco.spec.checks import problems_of_known
from diloco.spec.errors import Problem
from diloco.spec.job import JobSpec

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Location = tuple[str | int, ...]


def further_problems(document: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    """Problems across the fields that are right, beside those in ``error``."""
    wrong = {_unknown(detail) for detail in error.errors(include_url=False)}
    if ("spec",) not in wrong:
        for path, message in problems_of_known(_known(JobSpec, document["spec"], wrong, ("spec",))):
            yield Problem(f"spec.{path}", message)


def _unknown(detail: "ErrorDetails") -> _Location:
    """What cannot be known: the field; all fields beside one that does not exist; the list of an item."""
    place = detail["loc"]
    if detail["type"] == "extra_forbidden":
        place = place[:-1]
    while place and isinstance(place[-1], int):
        place = place[:-1]
    return place


def _known(model: type[BaseModel], document: dict[str, Any], wrong: Collection[_Location], at: _Location) -> Any:
    """``document`` as a model, unchecked as a whole, without what is wrong: reading that is an AttributeError."""
    made = model.model_construct()
    for name, field in model.model_fields.items():
        key = field.alias or name
        place, inner = (*at, key), _model_in(field.annotation)
        if key not in document and not field.is_required():
            continue
        value = document.get(key)
        if not any(one[: len(place)] == place for one in wrong):
            # As the manifest's own reading has it: `nvidia.com/gpu: 1` is then a text, as the rules expect.
            made.__dict__[name] = _adapter(model, name).validate_json(
                json.dumps(value), strict=True, by_alias=True, by_name=False
            )
        elif place in wrong or inner is None:
            made.__dict__.pop(name, None)
        elif isinstance(value, dict):
            made.__dict__[name] = _known(inner, value, wrong, place)
        else:
            made.__dict__[name] = tuple(_known(inner, one, wrong, (*place, n)) for n, one in enumerate(value or ()))
    return made


@cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """``Region`` of ``tuple[Region, ...]``, ``Backup`` of ``Backup | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
