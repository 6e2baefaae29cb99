"""What a template keeps when the operator's version changes: that restarts no pod, and asks nothing new of its image.

Every StatefulSet and Deployment carries two digests: of its template, and of the user's settings that go into the
template. If only the first differs, the operator has changed and the job has not. The live template then stays until no
pod runs or the user changes one of those settings. A third digest is of what the template asks of its image. If it
differs, an image keeps what it began with even then, because it may not understand the arguments of another version.
Pure.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import Any, Final

from diloco.spec import JobSpec
from diloco.spec.placement import Pool
from diloco_operator import labels
from diloco_operator.decide.objects.workloads import replicas
from diloco_operator.decide.observed import Object
from diloco_operator.manifests.common import OUR_MOUNTS, OUR_VOLUMES
from diloco_operator.manifests.documents import PASSED_TO_PODS
from diloco_operator.manifests.from_users.passthrough import OUR_VARIABLES
from diloco_operator.manifests.placement.holds import without_gate
from diloco_operator.manifests.syncer import credentials
from diloco_operator.names import PoolKey, pool_of, syncers_pool

TEMPLATE: Final = "diloco.dev/template"
"""Annotation of a set or Deployment: digest of its template."""
INPUTS: Final = "diloco.dev/inputs"
"""The same: digest of the user's settings that go into it. Its computation must never change, or pods restart."""
ASKED: Final = "diloco.dev/asked-of-image"
"""The same: digest of what it asks of its image."""
DEFAULT_IMAGE: Final = "diloco.dev/default-image"
"""Annotation of the syncer's Deployment: the trainer image of pods for which the manifest names none."""
_OF_IMAGE: Final = frozenset({"command", "args", "ports", "lifecycle"})
"""Fields of a container that its image has to understand, beside its probes, and our variables and mounts."""
_HANDLERS: Final = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})
"""Such fields of a probe."""
_PROBES: Final = frozenset({"startupProbe", "readinessProbe", "livenessProbe"})


def default_image(syncer: Object | None, newest: str | None) -> str | None:
    """The trainer image of pods for which the manifest names none: ``newest``, but for a job that runs already.

    All of its processes have one version, so a pool that is changed or added meanwhile has that of the others.
    """
    if syncer is None or not replicas(syncer):
        return newest
    return (syncer["metadata"].get("annotations") or {}).get(DEFAULT_IMAGE, newest)


def described(one: Object, spec: JobSpec, default: str | None) -> Object:
    """A set or Deployment with its digests added, the Deployment with the default image; other objects unchanged."""
    template = (one.get("spec") or {}).get("template")
    if template is None:
        return one
    its = one["metadata"]["labels"]
    if its[labels.COMPONENT] == labels.LEARNER:
        inputs = _pool_inputs(spec, pool_of(spec, PoolKey(its[labels.REGION], its[labels.POOL])))
    else:
        inputs = _syncer_inputs(spec, default)
        one = _annotated(one, {} if default is None else {DEFAULT_IMAGE: default})
    asked = _asked(template["spec"]["containers"][0])
    return _annotated(one, {TEMPLATE: _digest(template), INPUTS: _digest(inputs), ASKED: _digest(asked)})


def kept(desired: Object, live: Object, *, is_fixed: bool = False) -> Object:
    """``desired`` with what has to stay of the template of ``live``; ``is_fixed``: all of it while it has pods."""
    wanted, there = desired["metadata"]["annotations"], live["metadata"].get("annotations") or {}
    if there.get(TEMPLATE) == wanted[TEMPLATE]:
        return desired
    template, before = desired["spec"]["template"], without_gate(live["spec"]["template"])
    if replicas(live) and desired["spec"]["replicas"] and (is_fixed or there.get(INPUTS) == wanted[INPUTS]):
        template, digest = before, there.get(TEMPLATE, "")
    elif there.get(ASKED) != wanted[ASKED] and (began := _began(template, before)) is not None:
        template = _for_its_image(template, before["spec"], began)
        digest = _digest(template)
    else:
        return desired
    held = {**desired, "spec": {**desired["spec"], "template": template}}
    return _annotated(held, {TEMPLATE: digest, ASKED: there.get(ASKED, "")})


def _began(template: Object, before: Object) -> Object | None:
    """The container of ``before`` that has the same image as that of ``template``; None: there is none."""
    image = template["spec"]["containers"][0]["image"]
    return next((one for one in before["spec"].get("containers", ()) if one.get("image") == image), None)


def _for_its_image(template: Object, before: Object, began: Object) -> Object:
    """``template`` that asks of its image what ``began``, the container of the pod ``before``, asks of it."""
    pod = template["spec"]
    (container,) = pod["containers"]
    both = container.keys() & began.keys() & _PROBES
    found = {
        **_with(container, began, _OF_IMAGE | _PROBES),
        **{probe: _with(container[probe], began[probe], _HANDLERS) for probe in both},
        "env": _joined(_named(began.get("env", ()), OUR_VARIABLES), container["env"], "name"),
        # A path is the same whichever volume is there.
        "volumeMounts": _joined(
            container["volumeMounts"], _named(began.get("volumeMounts", ()), OUR_VOLUMES), "mountPath"
        ),
    }
    volumes = _joined(pod["volumes"], _named(before.get("volumes", ()), OUR_VOLUMES), "name")
    return {**template, "spec": {**pod, "containers": [found], "volumes": volumes}}


def _asked(container: Object) -> Object:
    """What it asks of its image, whatever the user's settings are."""
    return {
        **_with({}, container, _OF_IMAGE),
        **{probe: _with({}, container[probe], _HANDLERS) for probe in container.keys() & _PROBES},
        "env": _named(container["env"], OUR_VARIABLES),
        "volumeMounts": _named(container["volumeMounts"], OUR_MOUNTS),
    }


def _with(one: Object, other: Object, fields: Collection[str]) -> Object:
    """``one`` with ``fields`` as in ``other``."""
    rest = {field: value for field, value in one.items() if field not in fields}
    return {**rest, **{field: value for field, value in other.items() if field in fields}}


def _named(items: Iterable[Object], names: Collection[str]) -> list[Object]:
    return [one for one in items if one.get("name") in names]


def _joined(first: Collection[Object], then: Iterable[Object], key: str) -> list[Object]:
    there = {one.get(key) for one in first}
    return [*first, *(one for one in then if one.get(key) not in there)]


def changes_template(before: Object, after: Object) -> bool:
    """Whether a change of an object gives it another template while it has pods. Those without pods have no digest."""
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
