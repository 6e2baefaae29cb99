"""Where learners' pods should be: spread over nodes and zones, and not beside the syncer. Preferences, no conditions.

So what one node or zone takes with it is small, and learners leave the syncer's node its memory and cores. Nothing here
keeps a pod from being scheduled: a learner in a poor place is better than none.

Nodes are told apart by a spread constraint, zones by an anti-affinity. With constraints for both, the scheduler ignores
every node without a zone, so that on clusters without zones learners would not be spread at all.
"""

from collections.abc import Iterable
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest

_HOST: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_MOST_WEIGHT: Final = 100
"""The largest weight that Kubernetes accepts."""
_CONSTRAINTS: Final = "topologySpreadConstraints"
_ANTI_AFFINITY: Final = "podAntiAffinity"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_ANYWAY: Final = "ScheduleAnyway"
_RELAXED_SKEW: Final = 1000
"""The scheduler adds the skew to the learners that it counts, so differences of a few then weigh little (ours)."""


def spread(template: Manifest, job: str) -> Manifest:
    """A learner's pod ``template``, spread, except where the user has said how.

    A user's ``topologySpreadConstraints`` and ``affinity.podAntiAffinity`` each replace the one that is set here.
    """
    spec = template["spec"]
    affinity = spec.get("affinity") or {}
    if _ANTI_AFFINITY not in affinity:
        affinity = {**affinity, _ANTI_AFFINITY: {_PREFERRED: [_off_the_syncers_node(job), _by_zone(job)]}}
    constraints = spec.get(_CONSTRAINTS) or [_even(job)]
    return {**template, "spec": {**spec, "affinity": affinity, _CONSTRAINTS: constraints}}


def relaxed(spec: Manifest, job: str) -> Manifest:
    """A learner's pod ``spec`` in which a preference for nodes outweighs what is set here, and not what a user says.

    The scheduler gives spread, anti-affinity and node affinity the same weight, whatever the weights of their terms.
    So an empty node would be as good as one that the affinity prefers.
    """
    constraints = [_wide(one) if _is_ours(one, job) else one for one in spec.get(_CONSTRAINTS) or ()]
    affinity = dict(spec.get("affinity") or {})
    terms = (affinity.get(_ANTI_AFFINITY) or {}).get(_PREFERRED) or ()
    if terms and affinity[_ANTI_AFFINITY].keys() == {_PREFERRED} and _are_ours(terms, job):
        del affinity[_ANTI_AFFINITY]
    rest = {key: value for key, value in spec.items() if key not in ("affinity", _CONSTRAINTS)}
    return {
        **rest,
        **({"affinity": affinity} if affinity else {}),
        **({_CONSTRAINTS: constraints} if constraints else {}),
    }


def _even(job: str) -> Manifest:
    """Over all learners of the job, whatever their pool; only nodes that the pod may be on are compared."""
    return {
        "maxSkew": 1,
        "topologyKey": _HOST,
        "whenUnsatisfiable": _ANYWAY,
        "labelSelector": {"matchLabels": labels.learners_selector(job)},
    }


def _off_the_syncers_node(job: str) -> Manifest:
    return _away_from(_HOST, {"matchLabels": labels.syncer_selector(job)})


def _by_zone(job: str) -> Manifest:
    # An anti-affinity keeps others away from its own pod too. Those that avoid nodes have only that to go by.
    avoids_none = [{"key": labels.REVISION, "operator": "DoesNotExist"}]
    return _away_from(_ZONE, {"matchLabels": labels.learners_selector(job), "matchExpressions": avoids_none})


def _away_from(topology: str, selector: Manifest) -> Manifest:
    return {"weight": _MOST_WEIGHT, "podAffinityTerm": {"topologyKey": topology, "labelSelector": selector}}


def _wide(constraint: Manifest) -> Manifest:
    return {**constraint, "maxSkew": _RELAXED_SKEW}


def _is_ours(constraint: Any, job: str) -> bool:
    """Whether this or an earlier version has set it."""
    return (
        isinstance(constraint, dict)
        and constraint.get("whenUnsatisfiable") == _ANYWAY
        and constraint.get("topologyKey") in (_HOST, _ZONE)
        and constraint.get("labelSelector") == {"matchLabels": labels.learners_selector(job)}
    )


def _are_ours(terms: Iterable[Any], job: str) -> bool:
    """The same of anti-affinity."""
    ours = [_off_the_syncers_node(job), _by_zone(job)]
    return all(one in ours for one in terms)
