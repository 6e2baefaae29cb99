"""Where learners' pods should be: spread over nodes and zones, and not beside the syncer. Preferences, no conditions.

So what one node or zone takes with it is small, and learners leave the syncer's node its memory and cores. Nothing here
keeps a pod from being scheduled: a learner in a poor place is better than none.
"""

from typing import Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest

_HOST: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_MOST_WEIGHT: Final = 100
"""The largest weight that Kubernetes accepts."""


def spread(template: Manifest, job: str) -> Manifest:
    """A learner's pod ``template``, spread, except where the user has said how.

    A user's ``topologySpreadConstraints`` and ``affinity.podAntiAffinity`` each replace the one that is set here.
    """
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    if "podAntiAffinity" not in affinity:
        affinity = {**affinity, "podAntiAffinity": _off_the_syncers_node(job)}
    constraints = spec.get("topologySpreadConstraints") or [_even(job, _HOST), _even(job, _ZONE)]
    return {**template, "spec": {**spec, "affinity": affinity, "topologySpreadConstraints": constraints}}


def _even(job: str, topology: str) -> Manifest:
    """Over all learners of the job, whatever their pool; only nodes that the pod may be on are compared."""
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.learners_selector(job)},
    }


def _off_the_syncers_node(job: str) -> Manifest:
    term = {"topologyKey": _HOST, "labelSelector": {"matchLabels": labels.syncer_selector(job)}}
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": _MOST_WEIGHT, "podAffinityTerm": term}],
    }
