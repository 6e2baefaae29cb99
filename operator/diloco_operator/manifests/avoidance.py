"""How pods of a StatefulSet avoid nodes: by a preference in their template, beside which no other of ours weighs much.

Two more things are in the template. A label names the revision of the same template without the preference. So a pod
that was made from either is up to date, although the StatefulSet's controller takes them for two templates
(`decide/revisions.py`). And an annotation has the placement as it was before, for when the preference goes.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.manifests.spread import relaxed

PLACEMENT: Final = "diloco.dev/placement"
"""Annotation of a template that avoids nodes: the fields of its spec that differ, as they are without that, as JSON."""
_FIELDS: Final = ("affinity", "topologySpreadConstraints")
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT: Final = 100
"""The largest weight that Kubernetes accepts."""
_NAME: Final = "metadata.name"


def avoiding(one: Manifest, nodes: Sequence[str], revision: str) -> Manifest:
    """A StatefulSet whose pods prefer other nodes than ``nodes``.

    Args:
        one: The StatefulSet; its template avoids none.
        nodes: At least one.
        revision: The revision of its template as it is.
    """
    template = one["spec"]["template"]
    metadata, before = template["metadata"], template["spec"]
    given = metadata.get("labels") or {}
    spec = relaxed(before, given.get(labels.JOB, ""))
    affinity = spec.get("affinity") or {}
    by_node = affinity.get("nodeAffinity") or {}
    terms = [_term(nodes), *(by_node.get(_PREFERRED) or ())]
    placement = json.dumps({field: before[field] for field in _FIELDS if field in before}, sort_keys=True)
    avoids = {
        "metadata": {
            **metadata,
            "labels": {**given, labels.REVISION: revision},
            "annotations": {**(metadata.get("annotations") or {}), PLACEMENT: placement},
        },
        "spec": {**spec, "affinity": {**affinity, "nodeAffinity": {**by_node, _PREFERRED: terms}}},
    }
    return {**one, "spec": {**one["spec"], "template": {**template, **avoids}}}


def without_avoidance(template: Manifest) -> Manifest:
    """A pod template as it was before `avoiding`."""
    if not base_revision(template):
        return template
    metadata = dict(template["metadata"])
    metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key != labels.REVISION}
    annotations = metadata.pop("annotations", None) or {}
    rest = {key: value for key, value in annotations.items() if key != PLACEMENT}
    if rest:
        metadata["annotations"] = rest
    placement = _placement(annotations.get(PLACEMENT))
    if placement is None:
        return {**template, "metadata": metadata}
    spec = {key: value for key, value in template["spec"].items() if key not in _FIELDS}
    return {**template, "metadata": metadata, "spec": {**spec, **placement}}


def _placement(text: Any) -> Manifest | None:
    """What the annotation says; None: it is not there, or somebody has changed it."""
    try:
        said = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return {field: said[field] for field in _FIELDS if field in said} if isinstance(said, dict) else None


def avoided_by(made: Manifest) -> tuple[str, ...]:
    """The nodes that a pod, or a template, avoids because of `avoiding`."""
    affinity = (made.get("spec") or {}).get("affinity") or {}
    terms = (affinity.get("nodeAffinity") or {}).get(_PREFERRED) or ()
    if not (base_revision(made) and terms):
        return ()
    fields = (terms[0].get("preference") or {}).get("matchFields") or ()
    return tuple(str(value) for one in fields for value in one.get("values") or ())


def base_revision(made: Manifest) -> str:
    """What the label of a pod, or of a template, says; empty: it has none."""
    return str(((made.get("metadata") or {}).get("labels") or {}).get(labels.REVISION, ""))


def affinity_of(nodes: Sequence[str]) -> Manifest:
    """The affinity of a pod that avoids these nodes, and says nothing else."""
    return {"nodeAffinity": {_PREFERRED: [_term(nodes)]}}


def _term(nodes: Sequence[str]) -> Manifest:
    """One for all: the scheduler adds the weights of terms, so with one for each, several nodes would each lose little.

    The API server accepts one value for each requirement.
    """
    fields: list[Any] = [{"key": _NAME, "operator": "NotIn", "values": [node]} for node in nodes]
    return {"weight": _WEIGHT, "preference": {"matchFields": fields}}
