"""Keeps the pods of a pool together: on nodes whose label ``topologyKey`` has one value. A condition, no preference.

A set has one template, so its pods cannot be told apart by learner: all learners of a pool are in one place.
"""

from collections.abc import Mapping
from typing import Final

from diloco_operator.manifests.inputs import Manifest

_AFFINITY: Final = "podAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def together(template: Manifest, topology: str, pool: Mapping[str, str]) -> Manifest:
    """A pod ``template`` whose pods go where those with the labels ``pool`` are, beside what the user requires."""
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    given = affinity.get(_AFFINITY) or {}
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": dict(pool)}}
    required = {**given, _REQUIRED: [*given.get(_REQUIRED, ()), term]}
    return {**template, "spec": {**spec, "affinity": {**affinity, _AFFINITY: required}}}
