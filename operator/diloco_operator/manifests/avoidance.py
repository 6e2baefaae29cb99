"""How pods of a StatefulSet avoid nodes: by a preference in their template, beside which no other of ours weighs much.

A label of the template names the revision of the same template without that. So a pod that was made from either is up
to date, although the StatefulSet's controller takes them for two templates (`decide/revisions.py`).
"""

from collections.abc import Sequence
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.manifests.spread import MOST_WEIGHT, PREFERRED, relaxed, restored

_NAME: Final = "metadata.name"


def avoiding(one: Manifest, nodes: Sequence[str], revision: str) -> Manifest:
    """A StatefulSet whose pods prefer other nodes than ``nodes``.

    Args:
        one: The StatefulSet; its template avoids none.
        nodes: At least one.
        revision: The revision of its template as it is.
    """
    template = one["spec"]["template"]
    metadata = template["metadata"]
    given = metadata.get("labels") or {}
    spec = relaxed(template["spec"], given.get(labels.JOB, ""))
    affinity = spec.get("affinity") or {}
    by_node = affinity.get("nodeAffinity") or {}
    terms = [_term(nodes), *(by_node.get(PREFERRED) or ())]
    avoids = {
        "metadata": {**metadata, "labels": {**given, labels.REVISION: revision}},
        "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**by_node, PREFERRED: terms}}},
    }
    return {**one, "spec": {**one["spec"], "template": {**template, **avoids}}}


def without_avoidance(template: Manifest) -> Manifest:
    """A pod template as it was before `avoiding`."""
    if not base_revision(template):
        return template
    own = {key: value for key, value in template["metadata"]["labels"].items() if key != labels.REVISION}
    spec = restored(template["spec"], own.get(labels.JOB, ""))
    found = {**template, "metadata": {**template["metadata"], "labels": own}, "spec": spec}
    if not avoided_by(template):
        return found
    affinity = spec["affinity"]
    by_node = affinity["nodeAffinity"]
    by_node = _with(by_node, PREFERRED, by_node[PREFERRED][1:])
    return {**found, "spec": _with(spec, "affinity", _with(affinity, "nodeAffinity", by_node))}


def avoided_by(made: Manifest) -> tuple[str, ...]:
    """The nodes that a pod, or a template, avoids because of `avoiding`."""
    affinity = (made.get("spec") or {}).get("affinity") or {}
    terms = (affinity.get("nodeAffinity") or {}).get(PREFERRED) or ()
    if not (base_revision(made) and terms):
        return ()
    fields = (terms[0].get("preference") or {}).get("matchFields") or ()
    return tuple(str(value) for one in fields for value in one.get("values") or ())


def base_revision(made: Manifest) -> str:
    """What the label of a pod, or of a template, says; empty: it has none."""
    return str(((made.get("metadata") or {}).get("labels") or {}).get(labels.REVISION, ""))


def affinity_of(nodes: Sequence[str]) -> Manifest:
    """The affinity of a pod that avoids these nodes, and says nothing else."""
    return {"nodeAffinity": {PREFERRED: [_term(nodes)]}}


def _term(nodes: Sequence[str]) -> Manifest:
    """One for all: the scheduler adds the weights of terms, so with one for each, several nodes would each lose little.

    The API server accepts one value for each requirement.
    """
    fields: list[Any] = [{"key": _NAME, "operator": "NotIn", "values": [node]} for node in nodes]
    return {"weight": MOST_WEIGHT, "preference": {"matchFields": fields}}


def _with(given: Manifest, key: str, value: Any) -> Manifest:
    """``given`` with another value; without it if that is empty."""
    rest = {name: one for name, one in given.items() if name != key}
    return {**rest, key: value} if value else rest
