"""The Secrets that hold a job's certificates."""

from collections.abc import Mapping
from typing import Final

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.inputs import Certificates, Manifest

_TLS: Final = "kubernetes.io/tls"


def secrets(job: DiLoCoJob, certificates: Certificates, sets: names.SetNames) -> tuple[Manifest, ...]:
    """The Secrets at home: one for the authority, one for the syncer, one for each pool of ``sets``."""
    name = job.metadata.name
    authority, syncer = names.authority_secret(name), names.syncer_secret(name)
    ours = (
        (authority, labels.of_job(name, labels.JOB_WIDE), "Opaque"),
        (syncer, labels.of_job(name, labels.SYNCER), _TLS),
    )
    made = tuple(
        _secret(job, secret, own, kind, data)
        for secret, own, kind in ours
        if (data := certificates.secrets.get(secret)) is not None
    )
    return made + learners_secrets(job, certificates, sets)


def learners_secrets(job: DiLoCoJob, certificates: Certificates, sets: names.SetNames) -> tuple[Manifest, ...]:
    """The Secrets with the certificates of these pools' learners."""
    named = {key: names.learner_secret(set_name) for key, set_name in sets.items()}
    return tuple(
        _secret(job, secret, labels.of_pool(job.metadata.name, key), _TLS, data)
        for key, secret in named.items()
        if (data := certificates.secrets.get(secret)) is not None
    )


def _secret(job: DiLoCoJob, name: str, own: Mapping[str, str], kind: str, data: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": common.metadata(job, name, own),
        "type": kind,
        "data": dict(data),
    }
