"""All objects of a job, in an order that is safe to apply."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.errors import Problem
from diloco_operator import names
from diloco_operator.manifests import abroad, common, documents, learners, network, secrets, services, syncer
from diloco_operator.manifests.errors import InvalidSpecError
from diloco_operator.manifests.from_users import passthrough, pod_template, restrictions
from diloco_operator.manifests.from_users.everywhere import everywhere
from diloco_operator.manifests.inputs import Inputs, Placed
from diloco_operator.options import OperatorOptions

if TYPE_CHECKING:
    from diloco.spec.placement import Pool, SyncerSpec


def all_children(job: DiLoCoJob, options: OperatorOptions, inputs: Inputs) -> tuple[Placed, ...]:
    """All objects: first what pods mount, then policies and Services, then what runs pods; home first.

    Of regions in other clusters, only those in ``inputs.remotes``.

    Raises:
        InvalidSpecError: fields that are passed to pods are invalid, or conflict with what the operator sets.
    """
    sets = names.stateful_sets(job.metadata.name, names.pools(job.spec))
    own = restrictions.own_objects(job.metadata.name, sets)
    if wrong := [
        *pod_template.metadata_problems("spec", job.spec),
        *_pod_problems(job.spec, own),
        *restrictions.store_problems(job.spec, own),
    ]:
        raise InvalidSpecError(wrong)
    _check_set_names(sets)
    others = (abroad.objects(job, cluster, inputs, sets) for cluster in inputs.remotes)
    made = (*_at_home(job, options, inputs, sets), *chain.from_iterable(others))
    assigns = {"": options.assigns_users, **{name: one.assigns_users for name, one in inputs.remotes.items()}}
    secrets_of_pods = job.spec.image_pull_secrets or tuple({"name": name} for name in options.trainer_pull_secrets)
    made_as_said = (replace(one, body=everywhere(one.body, job.spec, secrets_of_pods)) for one in made)
    return tuple(
        replace(one, body=common.without_ids(one.body)) if assigns[one.cluster] else one for one in made_as_said
    )


def _at_home(job: DiLoCoJob, options: OperatorOptions, inputs: Inputs, sets: names.SetNames) -> tuple[Placed, ...]:
    images, scale = inputs.images, inputs.scale
    where, exposed = names.clusters(job.spec), services.exposed_syncer(job)
    here = {key: sets[key] for key in names.pools(job.spec) if not where[key.region]}
    made = (
        *secrets.secrets(job, inputs.certificates, here),
        documents.config_map(job, inputs.orders),
        syncer.claim(job),
        # Before the pods, so that there is no moment without a restriction.
        network.syncer_policy(job, options.operator_namespace),
        network.learners_policy(job, options.operator_namespace),
        *(network.unit_policy(job, key, set_name) for key, set_name in names.with_units(job.spec, here).items()),
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


def _pod_problems(spec: JobSpec, own: restrictions.OwnObjects) -> Iterator[Problem]:
    """What is passed to pods and conflicts with what the operator sets, or would give them objects of ``own``."""
    given: list[tuple[str, Pool | SyncerSpec, str]] = [("spec.syncer", spec.syncer, syncer.CONTAINER)]
    for i, region in enumerate(spec.regions):
        given += [(f"spec.regions[{i}].pools[{j}]", pool, learners.CONTAINER) for j, pool in enumerate(region.pools)]
    for place, pods, container in given:
        yield from passthrough.variable_problems(f"{place}.env", pods.env, own)
        if pods.pod_template is not None:
            yield from pod_template.problems(f"{place}.podTemplate", pods.pod_template, container, own)


def _check_set_names(sets: names.SetNames) -> None:
    """Two pools' sets must not have one name, in whichever clusters they are."""
    by_name: dict[str, names.PoolKey] = {}
    for key, name in sets.items():
        if name in by_name:
            # Eight digits of a digest: about once in four thousand million pairs.
            message = f"pools {by_name[name]} and {key} would both be named {name}; rename one"
            raise InvalidSpecError([Problem("spec.regions", message)])
        by_name[name] = key
