"""Where learners' pods should be: spread over nodes and zones, and not beside the syncer. Preferences, no conditions.

So what one node or zone takes with it is small, and learners leave the syncer's node its memory and cores. Nothing here
keeps a pod from being scheduled: a learner in a poor place is better than none.

Nodes are told apart by a spread constraint, zones by an anti-affinity. With constraints for both, the scheduler ignores
every node without a zone, so that on clusters without zones learners would not be spread at all.
"""

from collections.abc import Callable
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest

_HOST: Final = "kubernetes.io/hostname"
_ZONE: Final = "topology.kubernetes.io/zone"
_OF_SYNCER: Final = 100
"""The largest weight that Kubernetes accepts."""
_OF_ZONE: Final = 1
"""Each learner of a zone counts, once for the new pod's term and once for its own. Next to their sum, the one syncer
must still count for something (ours)."""
_CONSTRAINTS: Final = "topologySpreadConstraints"
_ANTI_AFFINITY: Final = "podAntiAffinity"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_SKEW: Final = 1
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
        affinity = {**affinity, _ANTI_AFFINITY: {_PREFERRED: [_off_the_syncers_node(job), _by_zone(job)]}}
    constraints = spec.get(_CONSTRAINTS) or [_even(job, _HOST)]
    return {**template, "spec": {**spec, "affinity": affinity, _CONSTRAINTS: constraints}}


def relaxed(spec: Manifest, job: str) -> Manifest:
    """A learner's pod ``spec`` in which a preference for nodes outweighs what is set here, and not what a user says.

    The scheduler gives spread, anti-affinity and node affinity the same weight, whatever the weights of their terms.
    So an empty node would be as good as one that the affinity prefers.
    """
    ours = [_even(job, _HOST), _even(job, _ZONE)]  # the latter in templates of earlier versions
    terms = [_off_the_syncers_node(job), _by_zone(job)]
    return _changed(
        spec,
        lambda one: {**one, "maxSkew": _RELAXED_SKEW} if one in ours else one,
        lambda one: _elsewhere(one) if one in terms else one,
    )


def restored(spec: Manifest, job: str) -> Manifest:
    """A pod ``spec`` as it was before `relaxed`."""
    before = {key: _even(job, key) for key in (_HOST, _ZONE)}
    terms = [_off_the_syncers_node(job), _by_zone(job)]
    return _changed(
        spec,
        lambda one: next((own for own in before.values() if one == {**own, "maxSkew": _RELAXED_SKEW}), one),
        lambda one: next((own for own in terms if one == _elsewhere(own)), one),
    )


def _changed(spec: Manifest, constraint: Callable[[Any], Any], term: Callable[[Any], Any]) -> Manifest:
    """A pod's spec with each spread constraint and each preferred anti-affinity changed so."""
    changed = dict(spec)
    if changed.get(_CONSTRAINTS):
        changed[_CONSTRAINTS] = [constraint(one) for one in changed[_CONSTRAINTS]]
    apart = (changed.get("affinity") or {}).get(_ANTI_AFFINITY) or {}
    if apart.get(_PREFERRED):
        apart = {**apart, _PREFERRED: [term(one) for one in apart[_PREFERRED]]}
        changed["affinity"] = {**changed["affinity"], _ANTI_AFFINITY: apart}
    return changed


def _even(job: str, topology: str) -> Manifest:
    """Over all learners of the job, whatever their pool; only nodes that the pod may be on are compared."""
    return {
        "maxSkew": _SKEW,
        "topologyKey": topology,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels.learners_selector(job)},
    }


def _off_the_syncers_node(job: str) -> Manifest:
    return _away_from(_HOST, {"matchLabels": labels.syncer_selector(job)}, _OF_SYNCER)


def _by_zone(job: str) -> Manifest:
    # An anti-affinity also keeps others away from its own pod, and so it would drive a pod to a node that it avoids. So
    # pods that were made to avoid nodes do not count here.
    avoids_none = [{"key": labels.REVISION, "operator": "DoesNotExist"}]
    return _away_from(_ZONE, {"matchLabels": labels.learners_selector(job), "matchExpressions": avoids_none}, _OF_ZONE)


def _away_from(topology: str, selector: Manifest, weight: int) -> Manifest:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": topology, "labelSelector": selector}}


def _elsewhere(term: Manifest) -> Manifest:
    """A term that has no effect, and can be told from all others."""
    return {**term, "podAffinityTerm": {**term["podAffinityTerm"], "namespaces": _NOWHERE}}
