"""The ConfigMap with the job's manifest, as its processes read it.

It leaves out what no process uses: ``suspend``, labels of objects, what becomes of lost pods, when pools fall back, how
the syncer is exposed, which clusters regions are in, and learners' claims. So a changed address changes nothing here.
Pod templates must not contain a digest of it, or a change of a pool's size would restart all pods.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from diloco.spec import DiLoCoJob
from diloco.spec.errors import Problem
from diloco.spec.reading.defaults import ANNOTATION, left_out
from diloco.spec.reading.load import MAXIMUM_BYTES
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.errors import InvalidSpecError
from diloco_operator.manifests.inputs import Manifest

ENDPOINT_FILE: Final = "endpoint"
"""The file with ``host:port`` of the syncer, in other clusters; empty while it is not known."""
PASSED_TO_PODS: Final = frozenset({"image", "resources", "env", "pod_template", "topology_key"})
"""Fields of a pool that only its pods' template uses, and no process."""
USED_BY_CLAIMS: Final = frozenset({"storage"})
"""Fields of a pool that only its learners' claims use."""
USED_BY_OPERATOR: Final = frozenset({"fallback_after_seconds", "certificates_not_before"})
"""Fields of a pool that only the operator uses."""
_OF_OBJECTS: Final = dict.fromkeys(
    ("suspend", "managed_by", "queue", "image_pull_secrets", "labels", "annotations"), True
)
"""Fields of the spec that say how its objects are, and who makes them, which no process uses."""
USED_BY_SYNCER: Final = frozenset({"speed"})
"""Fields of a pool that no learner uses."""
_USED_BY_NO_PROCESS: Final[Any] = {
    **_OF_OBJECTS,
    "failure_policy": {"lost_pods": True},
    "syncer": {
        "expose": True,
        "storage": {"when_deleted": True, "adopt_retained": True},
        "backup": {"secret_name": True},
    },
    "init_from": {"secret_name": True},
    "regions": {"__all__": {"cluster": True, "pools": {"__all__": set(USED_BY_CLAIMS | USED_BY_OPERATOR)}}},
}
_ABROAD: Final[Any] = {
    **_OF_OBJECTS,
    "failure_policy": {"lost_pods": True},
    "image": True,
    "syncer": True,
    "init_from": True,
    "regions": {
        "__all__": {
            "cluster": True,
            "pools": {"__all__": set(PASSED_TO_PODS | USED_BY_CLAIMS | USED_BY_OPERATOR | USED_BY_SYNCER)},
        }
    },
}
"""What a manifest in another cluster leaves out. Its owner has no use for it: where other regions are, names of their
Secrets, what their pods and the syncer's get."""

# These are valid in JSON's strings, but for YAML, which reads the manifest, they are line breaks or not allowed.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def config_map(job: DiLoCoJob, orders: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """The ConfigMap; ``orders``: files for the syncer, by name (`diloco.spec.names.learner_orders`).

    Raises:
        InvalidSpecError: the manifest is larger than a process reads.
    """
    return _config_map(job, {common.JOB_FILE: job_text(job), **orders})


def remote_config_map(job: DiLoCoJob, endpoint: str) -> Manifest:
    """The ConfigMap in another cluster, as at home but for its content.

    Raises:
        InvalidSpecError: the manifest is larger than a process reads.
    """
    return _config_map(job, {common.JOB_FILE: _text(_counted(job), _ABROAD), ENDPOINT_FILE: endpoint})


def _counted(job: DiLoCoJob) -> DiLoCoJob:
    """The job with the number of a node's processes in each pool, which its limits say otherwise."""
    regions = tuple(
        region.model_copy(
            update={
                "pools": tuple(
                    pool.model_copy(update={"processes_per_node": pool.processes if pool.processes > 1 else None})
                    for pool in region.pools
                )
            }
        )
        for region in job.spec.regions
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"regions": regions})})


def _config_map(job: DiLoCoJob, data: dict[str, str]) -> Manifest:
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": common.metadata(job, names.config_map(name), labels.of_job(name, labels.JOB_WIDE)),
        "data": data,
    }


def job_text(job: DiLoCoJob) -> str:
    """The manifest with what differs from the defaults, and the defaults in an annotation.

    So a process of another version, whose defaults can be others, trains as this version says, and finds no unknown
    fields.

    Raises:
        InvalidSpecError: it is larger than a process reads.
    """
    return _text(job, _USED_BY_NO_PROCESS)


def _text(job: DiLoCoJob, leave_out: Any) -> str:
    whole = job.spec.model_dump(mode="json", by_alias=True, exclude=leave_out)
    given = job.spec.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_defaults=True, exclude=leave_out
    )
    annotations = {ANNOTATION: json.dumps(left_out(whole, given), separators=(",", ":"))}
    document = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace, "annotations": annotations},
        "spec": given,
    }
    plain = json.dumps(document, ensure_ascii=False, indent=1)
    text = _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", plain) + "\n"
    if len(text.encode()) > MAXIMUM_BYTES:
        message = f"is larger than {MAXIMUM_BYTES // 1024} KiB as a document; shorten what is passed to the pools"
        raise InvalidSpecError([Problem("spec", message)])
    return text
