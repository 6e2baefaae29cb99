"""Whether running pods keep their template, so that a new version of the operator restarts no pods.

Every StatefulSet and Deployment carries two digests: of its template, and of the user's settings that go into the
template. If only the first differs, the operator has changed and the job has not. The live template then stays until no
pod runs or the user changes one of those settings. Pure.
"""

import hashlib
import json
from typing import Any, Final

from diloco.spec import JobSpec
from diloco.spec.placement import Pool
from diloco_operator import labels
from diloco_operator.decide.objects.workloads import replicas
from diloco_operator.decide.observed import Object
from diloco_operator.manifests.documents import PASSED_TO_PODS
from diloco_operator.manifests.placement.holds import without_gate
from diloco_operator.manifests.syncer import credentials
from diloco_operator.names import PoolKey, pool_of, syncers_pool

TEMPLATE: Final = "diloco.dev/template"
"""Annotation of a set or Deployment: digest of its template."""
INPUTS: Final = "diloco.dev/inputs"
"""The same: digest of the user's settings that go into it. Its computation must never change, or pods restart."""
DEFAULT_IMAGE: Final = "diloco.dev/default-image"
"""Annotation of the syncer's Deployment: the trainer image of pods for which the manifest names none."""


def default_image(syncer: Object | None, newest: str | None) -> str | None:
    """The trainer image of pods for which the manifest names none: ``newest``, but for a job that runs already.

    All of its processes have one version, so a pool that is changed or added meanwhile has that of the others.
    """
    if syncer is None or not replicas(syncer):
        return newest
    return (syncer["metadata"].get("annotations") or {}).get(DEFAULT_IMAGE, newest)


def described(one: Object, spec: JobSpec, default: str | None) -> Object:
    """A set or Deployment with both digests added, the Deployment with the default image; other objects unchanged."""
    template = (one.get("spec") or {}).get("template")
    if template is None:
        return one
    its = one["metadata"]["labels"]
    if its[labels.COMPONENT] == labels.LEARNER:
        inputs = _pool_inputs(spec, pool_of(spec, PoolKey(its[labels.REGION], its[labels.POOL])))
    else:
        inputs = _syncer_inputs(spec, default)
        one = _annotated(one, {} if default is None else {DEFAULT_IMAGE: default})
    return _annotated(one, {TEMPLATE: _digest(template), INPUTS: _digest(inputs)})


def kept(desired: Object, live: Object) -> Object:
    """``desired`` with the template of ``live`` if that has to stay, otherwise unchanged."""
    if not (replicas(live) and desired["spec"]["replicas"]):
        return desired
    wanted, there = desired["metadata"]["annotations"], live["metadata"].get("annotations") or {}
    if there.get(TEMPLATE) == wanted[TEMPLATE]:
        return desired
    if there.get(INPUTS) != wanted[INPUTS]:
        return desired
    annotations = {**wanted, TEMPLATE: there.get(TEMPLATE, "")}
    template = without_gate(live["spec"]["template"])
    held = {**desired, "spec": {**desired["spec"], "template": template}}
    return {**held, "metadata": {**desired["metadata"], "annotations": annotations}}


def replaces_pods(before: Object, after: Object) -> bool:
    """Whether a change of an object has its controller replace pods that run. Objects without pods have no digest."""
    old, new = ((one["metadata"].get("annotations") or {}).get(TEMPLATE) for one in (before, after))
    return old not in (None, new) and bool(replicas(before) and replicas(after))


def _pool_inputs(spec: JobSpec, pool: Pool) -> Any:
    said = pool.model_dump(mode="json", by_alias=True, include=set(PASSED_TO_PODS), exclude_defaults=True)
    return {**_pull_secrets(spec), "image": spec.image, "pool": said}


def _pull_secrets(spec: JobSpec) -> dict[str, Any]:
    # Only if there are some, as below.
    return {"imagePullSecrets": list(spec.image_pull_secrets)} if spec.image_pull_secrets else {}


def _syncer_inputs(spec: JobSpec, default: str | None) -> Any:
    first = pool_of(spec, syncers_pool(spec))
    resources = spec.syncer.resources
    patch = spec.syncer.pod_template
    # Only if there is one, so that the digest of jobs without it is the same as before the field existed.
    patched = {} if patch is None else {"podTemplate": patch.model_dump(mode="json", by_alias=True)}
    stores = credentials(spec)
    return {
        **patched,
        **({"stores": stores} if stores else {}),
        **_pull_secrets(spec),
        "image": spec.syncer.image or spec.image or (first.image if default is None else None),
        "env": list(spec.syncer.env),
        "resources": {}
        if resources is None
        else resources.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }


def _annotated(one: Object, more: dict[str, str]) -> Object:
    metadata = one["metadata"]
    return {**one, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **more}}}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
