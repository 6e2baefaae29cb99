"""Variables that a job passes to its pods. The operator's names are refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from diloco.spec.errors import Problem
from diloco.spec.words import listed
from diloco_operator.manifests.from_users import restrictions
from diloco_operator.manifests.inputs import Manifest

POD_INDEX: Final = "POD_INDEX"
"""The variable with a learner's index in its pool."""
POD: Final = "DILOCO_POD"
"""The variable with the uid of a learner's pod."""
OUR_VARIABLES: Final = ("HOME", POD_INDEX, POD)


def variable_problems(place: str, given: Sequence[Manifest], own: restrictions.OwnObjects) -> Iterator[Problem]:
    """Problems of environment variables."""
    for index, variable in enumerate(given):
        if (name := variable["name"]) in OUR_VARIABLES:
            yield taken(f"{place}[{index}].name", name, OUR_VARIABLES)
    yield from restrictions.reference_problems(place, given, own)


def taken(place: str, name: Any, ours: Iterable[str]) -> Problem:
    """The problem of a name that the operator uses itself."""
    return Problem(place, f"{name} is set by the operator; use a name other than {listed(ours)}")
