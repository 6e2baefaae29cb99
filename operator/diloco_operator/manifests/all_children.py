"""All objects of a job, in an order that is safe to apply."""

from typing import TYPE_CHECKING

from diloco.spec import DiLoCoJob
from diloco.spec.errors import Problem
from diloco_operator import names
from diloco_operator.manifests import (
    documents,
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
from diloco_operator.manifests.inputs import Certificates, Images, Manifest, Scale
from diloco_operator.options import OperatorOptions

if TYPE_CHECKING:
    from diloco.spec.placement import PodTemplate


def all_children(
    job: DiLoCoJob, options: OperatorOptions, images: Images, scale: Scale, certificates: Certificates
) -> tuple[Manifest, ...]:
    """All objects: first what pods mount, then policies and Services, then what runs pods.

    Raises:
        InvalidSpecError: fields that are passed to pods are invalid, or conflict with what the operator sets.
    """
    sets = names.stateful_sets(job.metadata.name, names.pools(job.spec)) | dict(scale.sets)
    own = restrictions.own_objects(job.metadata.name, sets)
    passthrough.check(job.spec, own)
    _check_templates(job, own)
    exposed = services.exposed_syncer(job)
    return (
        *secrets.secrets(job, certificates, sets),
        documents.config_map(job),
        syncer.claim(job),
        # Before the pods, so that there is no moment without a restriction.
        network.syncer_policy(job, options.operator_namespace),
        network.learners_policy(job, options.operator_namespace),
        services.syncer(job),
        *([exposed] if exposed is not None else []),
        services.learners(job),
        syncer.deployment(job, images.syncer, scale.syncer),
        *_stateful_sets(job, images, scale, sets),
    )


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


def _stateful_sets(job: DiLoCoJob, images: Images, scale: Scale, sets: names.SetNames) -> tuple[Manifest, ...]:
    by_name: dict[str, names.PoolKey] = {}
    made = []
    for key in names.pools(job.spec):
        one = learners.stateful_set(job, key, sets[key], images.learners[key], scale.learners.get(key, 0))
        name = sets[key]
        if name in by_name:
            # Eight digits of a digest: about once in four thousand million pairs.
            message = f"pools {by_name[name]} and {key} would both be named {name}; rename one"
            raise InvalidSpecError([Problem("spec.regions", message)])
        by_name[name] = key
        made.append(one)
    return tuple(made)
