"""What a job says about all of its objects and pods: labels, annotations, Secrets for pulling images.

A cluster's policy may demand a label of every object, and a registry a Secret of every pod. What the operator sets
itself takes precedence.
"""

from collections.abc import Sequence
from typing import Any

from diloco.spec import JobSpec
from diloco_operator.manifests.inputs import Manifest


def everywhere(one: Manifest, spec: JobSpec, pull_secrets: Sequence[Manifest]) -> Manifest:
    """An object as the job has all of its objects, with its pods' and claims' templates."""
    found = _marked(one, spec)
    if "template" not in one.get("spec", {}):
        return found
    inner = found["spec"]
    template = _marked(inner["template"], spec)
    if pull_secrets:
        named = {secret["name"]: secret for secret in (*template["spec"].get("imagePullSecrets", ()), *pull_secrets)}
        template = {**template, "spec": {**template["spec"], "imagePullSecrets": list(named.values())}}
    claims = [_marked(claim, spec) for claim in inner.get("volumeClaimTemplates", ())]
    more: dict[str, Any] = {"volumeClaimTemplates": claims} if claims else {}
    return {**found, "spec": {**inner, "template": template, **more}}


def _marked(one: Manifest, spec: JobSpec) -> Manifest:
    metadata = one["metadata"]
    more = {
        field: {**said, **metadata.get(field, {})}
        for field, said in (("labels", spec.labels), ("annotations", spec.annotations))
        if said
    }
    return {**one, "metadata": {**metadata, **more}} if more else one
