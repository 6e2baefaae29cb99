"""All objects of a job, in an order that is safe to apply."""

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from diloco.spec import DiLoCoJob
from diloco.spec.errors import Problem
from diloco_operator import names
from diloco_operator.manifests import (
    abroad,
    documents,
    kubeconfig_keys,
    learners,
    network,
    passthrough,
    pod_template,
    restrictions,
    secrets,
    services,
    syncer,
)
from diloco_operator.manifests.errors import InvalidSpecError
from diloco_operator.manifests.inputs import Inputs, Manifest, Placed
from diloco_operator.options import OperatorOptions

if TYPE_CHECKING:
    from diloco.spec.placement import PodTemplate


def all_children(job: DiLoCoJob, options: OperatorOptions, inputs: Inputs) -> tuple[Placed, ...]:
    """All objects: first what pods mount, then policies and Services, then what runs pods; home first.

    Of regions in other clusters, only those in ``inputs.remotes``.

    Raises:
        InvalidSpecError: fields that are passed to pods are invalid, or conflict with what the operator sets.
    """
    sets = names.stateful_sets(job.metadata.name, names.pools(job.spec)) | dict(inputs.scale.sets)
    own = restrictions.own_objects(job.metadata.name, sets)
    if wrong := list(kubeconfig_keys.problems(job.spec)):
        raise InvalidSpecError(wrong)
    passthrough.check(job.spec, own)
    if wrong := [*restrictions.store_problems(job.spec, own)]:
        raise InvalidSpecError(wrong)
    _check_templates(job, own)
    _check_set_names(sets)
    named = replace(inputs, scale=replace(inputs.scale, sets=sets))
    others = (abroad.objects(job, cluster, named) for cluster in inputs.remotes)
    return (*_at_home(job, options, named), *chain.from_iterable(others))


def _at_home(job: DiLoCoJob, options: OperatorOptions, inputs: Inputs) -> tuple[Placed, ...]:
    images, scale = inputs.images, inputs.scale
    where, exposed = names.clusters(job.spec), services.exposed_syncer(job)
    here = {key: scale.sets[key] for key in names.pools(job.spec) if not where[key.region]}
    made = (
        *secrets.secrets(job, inputs.certificates, here),
        documents.config_map(job, inputs.orders),
        syncer.claim(job),
        # Before the pods, so that there is no moment without a restriction.
        network.syncer_policy(job, options.operator_namespace),
        network.learners_policy(job, options.operator_namespace),
        services.syncer(job),
        *([exposed] if exposed is not None else []),
        services.learners(job),
        syncer.deployment(job, images.syncer, scale.syncer),
        *(
            learners.stateful_set(job, key, set_name, images.learners[key], scale.learners.get(key, 0))
            for key, set_name in here.items()
        ),
    )
    return tuple(Placed(one) for one in made)


def _check_templates(job: DiLoCoJob, own: restrictions.OwnObjects) -> None:
    templates: list[tuple[str, PodTemplate | None, str, Manifest]] = [
        ("spec.syncer", job.spec.syncer.pod_template, syncer.CONTAINER, {})
    ]
    for i, region in enumerate(job.spec.regions):
        for j, pool in enumerate(region.pools):
            beside = pool.model_dump(mode="json", by_alias=True)
            templates.append((f"spec.regions[{i}].pools[{j}]", pool.pod_template, learners.CONTAINER, beside))
    found = [
        problem
        for place, template, container, beside in templates
        if template is not None
        for problem in pod_template.problems(f"{place}.podTemplate", template, container, beside, own)
    ]
    if found:
        raise InvalidSpecError(found)


def _check_set_names(sets: names.SetNames) -> None:
    """Two pools' sets must not have one name, in whichever clusters they are."""
    by_name: dict[str, names.PoolKey] = {}
    for key, name in sets.items():
        if name in by_name:
            # Eight digits of a digest: about once in four thousand million pairs.
            message = f"pools {by_name[name]} and {key} would both be named {name}; rename one"
            raise InvalidSpecError([Problem("spec.regions", message)])
        by_name[name] = key
