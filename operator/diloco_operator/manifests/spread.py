"""Where learners' pods should be: spread over nodes and zones, and not beside the syncer. Preferences, no conditions.

So what one node or zone takes with it is small, and learners leave the syncer's node its memory and cores. Nothing here
keeps a pod from being scheduled: a learner in a poor place is better than none.

Nodes are told apart by a spread constraint, zones by an anti-affinity. With constraints for both, the scheduler ignores
every node without a zone, so that on clusters without zones learners would not be spread at all.
"""

from collections.abc import Sequence
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest

_HOST: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
MOST_WEIGHT: Final = 100
"""The largest weight that Kubernetes accepts."""
_OF_ZONE: Final = 1
"""Each learner of a zone counts, once for the new pod's term and once for its own. Next to their sum, the one syncer
must still count for something (ours)."""
_CONSTRAINTS: Final = "topologySpreadConstraints"
_ANTI_AFFINITY: Final = "podAntiAffinity"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_RELAXED_SKEW: Final = 1000
"""The scheduler adds the skew to the learners that it counts, so differences of a few then weigh little (ours)."""
_NOWHERE: Final = ["diloco-relaxed"]
"""In the namespaces of a term: it matches no pod."""


def spread(template: Manifest, job: str) -> Manifest:
    """A learner's pod ``template``, spread, except where the user has said how.

    A user's ``topologySpreadConstraints`` and ``affinity.podAntiAffinity`` each replace the one that is set here.
    """
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    if _ANTI_AFFINITY not in affinity:
        affinity = {**affinity, _ANTI_AFFINITY: {PREFERRED: [_off_the_syncers_node(job), _by_zone(job)]}}
    constraints = spec.get(_CONSTRAINTS) or [_even(job, _HOST)]
    return {**template, "spec": {**spec, "affinity": affinity, _CONSTRAINTS: constraints}}


def relaxed(spec: Manifest, job: str) -> Manifest:
    """A learner's pod ``spec`` in which a preference for nodes outweighs what is set here, and not what a user says.

    The scheduler gives spread, anti-affinity and node affinity the same weight, whatever the weights of their terms.
    So an empty node would be as good as one that the affinity prefers.
    """
    return _replaced(spec, _relaxations(job))


def restored(spec: Manifest, job: str) -> Manifest:
    """A pod ``spec`` as it was before `relaxed`."""
    return _replaced(spec, [(after, before) for before, after in _relaxations(job)])


def _relaxations(job: str) -> list[tuple[Manifest, Manifest]]:
    """What this and earlier versions set, each with what it is when relaxed. Zones had a constraint in earlier ones."""
    constraints, terms = [_even(job, _HOST), _even(job, _ZONE)], [_off_the_syncers_node(job), _by_zone(job)]
    return [(one, {**one, "maxSkew": _RELAXED_SKEW}) for one in constraints] + [(one, _nowhere(one)) for one in terms]


def _replaced(spec: Manifest, pairs: Sequence[tuple[Manifest, Manifest]]) -> Manifest:
    """A pod's spec with the spread constraints and preferred anti-affinities replaced that come first in a pair."""

    def replaced(given: Sequence[Any]) -> list[Any]:
        return [next((new for old, new in pairs if one == old), one) for one in given]

    changed = dict(spec)
    if changed.get(_CONSTRAINTS):
        changed[_CONSTRAINTS] = replaced(changed[_CONSTRAINTS])
    apart = (changed.get("affinity") or {}).get(_ANTI_AFFINITY) or {}
    if apart.get(PREFERRED):
        apart = {**apart, PREFERRED: replaced(apart[PREFERRED])}
        changed["affinity"] = {**changed["affinity"], _ANTI_AFFINITY: apart}
    return changed


def _even(job: str, topology: str) -> Manifest:
    """Over all learners of the job, whatever their pool; only nodes that the pod may be on are compared."""
    return {
        "maxSkew": 1,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.learners_selector(job)},
    }


def _off_the_syncers_node(job: str) -> Manifest:
    return _away_from(_HOST, {"matchLabels": labels.syncer_selector(job)}, MOST_WEIGHT)


def _by_zone(job: str) -> Manifest:
    # An anti-affinity also keeps others away from its own pod, and so it would drive a pod to a node that it avoids. So
    # pods that were made to avoid nodes do not count here.
    avoids_none = [{"key": labels.REVISION, "operator": "DoesNotExist"}]
    return _away_from(_ZONE, {"matchLabels": labels.learners_selector(job), "matchExpressions": avoids_none}, _OF_ZONE)


def _away_from(topology: str, selector: Manifest, weight: int) -> Manifest:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": topology, "labelSelector": selector}}


def _nowhere(term: Manifest) -> Manifest:
    """A term that has no effect, and can be told from all others."""
    return {**term, "podAffinityTerm": {**term["podAffinityTerm"], "namespaces": _NOWHERE}}
