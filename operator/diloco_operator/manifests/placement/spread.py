"""Where learners' pods should be: spread over nodes and zones, and not beside the syncer. Preferences, no conditions.

So what one node or zone takes with it is small, and learners leave the syncer's node its memory and cores. Nothing here
keeps a pod from being scheduled: a learner in a poor place is better than none.

Nodes are told apart by a spread constraint, zones by an anti-affinity. With constraints for both, the scheduler ignores
every node without a zone, so that on clusters without zones learners would not be spread at all.
"""

from typing import Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest

_HOST: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_MOST_WEIGHT: Final = 100
"""The largest weight that Kubernetes accepts."""
_OF_ZONE: Final = 1
"""Each learner of a zone counts, once for the new pod's term and once for its own. Next to their sum, the one syncer
must still count for something (ours)."""
_CONSTRAINTS: Final = "topologySpreadConstraints"
_ANTI_AFFINITY: Final = "podAntiAffinity"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def spread(template: Manifest, job: str, *, zones: bool) -> Manifest:
    """A learner's pod ``template``, spread, except where the user has said how.

    A user's ``topologySpreadConstraints`` and ``affinity.podAntiAffinity`` each replace the one that is set here.
    ``zones``: also over zones, which would tear a learner of several pods apart.
    """
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    if _ANTI_AFFINITY not in affinity:
        away = [_off_the_syncers_node(job), *([_by_zone(job)] if zones else [])]
        affinity = {**affinity, _ANTI_AFFINITY: {_PREFERRED: away}}
    constraints = spec.get(_CONSTRAINTS) or [_even(job)]
    return {**template, "spec": {**spec, "affinity": affinity, _CONSTRAINTS: constraints}}


def _even(job: str) -> Manifest:
    """Over all learners of the job, whatever their pool; only nodes that the pod may be on are compared."""
    return {
        "maxSkew": 1,
        "topologyKey": _HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.learners_selector(job)},
    }


def _off_the_syncers_node(job: str) -> Manifest:
    return _away_from(_HOST, {"matchLabels": labels.syncer_selector(job)}, _MOST_WEIGHT)


def _by_zone(job: str) -> Manifest:
    return _away_from(_ZONE, {"matchLabels": labels.learners_selector(job)}, _OF_ZONE)


def _away_from(topology: str, selector: Manifest, weight: int) -> Manifest:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": topology, "labelSelector": selector}}
