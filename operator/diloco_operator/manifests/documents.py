"""The ConfigMap with the job's manifest, as its processes read it.

It leaves out ``suspend``, which no process uses. Pod templates must not contain a digest of it, or a change of a pool's
size would restart all pods.
"""

import json
import re

from diloco.spec import DiLoCoJob
from diloco.spec.errors import Problem
from diloco.spec.load import MAXIMUM_BYTES
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.errors import InvalidSpecError
from diloco_operator.manifests.inputs import Manifest

# These are valid in JSON's strings, but for YAML, which reads the manifest, they are line breaks or not allowed.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def config_map(job: DiLoCoJob) -> Manifest:
    """The ConfigMap.

    Raises:
        InvalidSpecError: the manifest is larger than a process reads.
    """
    name = job.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": common.metadata(job, names.config_map(name), labels.of_job(name, labels.JOB_WIDE)),
        "data": {common.JOB_FILE: job_text(job)},
    }


def job_text(job: DiLoCoJob) -> str:
    """The manifest with what differs from the defaults.

    The API server fills in every default of this version's CRD. They are left out again, so that the image of an
    earlier version, which a job may name, finds no unknown fields.

    Raises:
        InvalidSpecError: it is larger than a process reads.
    """
    document = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace},
        "spec": job.spec.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude_defaults=True, exclude={"suspend"}
        ),
    }
    plain = json.dumps(document, ensure_ascii=False, indent=1)
    text = _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", plain) + "\n"
    if len(text.encode()) > MAXIMUM_BYTES:
        message = f"is larger than {MAXIMUM_BYTES // 1024} KiB as a document; shorten what is passed to the pools"
        raise InvalidSpecError([Problem("spec", message)])
    return text
