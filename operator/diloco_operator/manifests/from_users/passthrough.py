"""Resources and variables that a job passes to its pods, in the API server's form. The operator's names are refused."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from diloco.spec.errors import Problem
from diloco.spec.pods import Resources
from diloco.spec.words import listed
from diloco_operator.manifests.errors import shown
from diloco_operator.manifests.from_users import restrictions
from diloco_operator.manifests.inputs import Manifest

POD_INDEX: Final = "POD_INDEX"
"""The variable with a learner's index in its pool."""
POD: Final = "DILOCO_POD"
"""The variable with the uid of a learner's pod."""
OUR_VARIABLES: Final = ("HOME", POD_INDEX, POD)


def resources(passed: Resources | None) -> Manifest:
    """``{"resources": ...}`` of a container, or nothing."""
    given = {} if passed is None else passed.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found = {key: _as_texts(value) for key, value in given.items() if value}
    return {"resources": found} if found else {}


def _as_texts(part: Any) -> Any:
    """Quantities as texts, which server-side apply wants; claims as they are."""
    return {name: str(amount) for name, amount in part.items()} if isinstance(part, Mapping) else part


def variables(given: Sequence[Manifest]) -> list[Manifest]:
    """A user's environment variables."""
    return [_variable(one) for one in given]


def _variable(variable: Manifest) -> Manifest:
    source = variable.get("valueFrom")
    if isinstance(source, dict) and "divisor" in (source.get("resourceFieldRef") or {}):
        field = {**source["resourceFieldRef"], "divisor": str(source["resourceFieldRef"]["divisor"])}
        return {**variable, "valueFrom": {**source, "resourceFieldRef": field}}
    return variable


def variable_problems(place: str, given: Sequence[Manifest], own: restrictions.OwnObjects) -> Iterator[Problem]:
    """Problems of environment variables."""
    for index, variable in enumerate(given):
        name, value = variable["name"], variable.get("value")
        if name in OUR_VARIABLES:
            yield taken(f"{place}[{index}].name", name, OUR_VARIABLES)
        if value is not None and not isinstance(value, str):
            yield Problem(f"{place}[{index}].value", f"{shown(value)} is not text; put it in quotes")
    yield from restrictions.reference_problems(place, given, own)


def taken(place: str, name: Any, ours: Iterable[str]) -> Problem:
    """The problem of a name that the operator uses itself."""
    return Problem(place, f"{name} is set by the operator; use a name other than {listed(ours)}")
