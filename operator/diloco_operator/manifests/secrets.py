"""The Secrets that hold a job's certificates."""

from collections.abc import Mapping

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.inputs import Certificates, Manifest


def secrets(job: DiLoCoJob, certificates: Certificates, sets: names.SetNames) -> tuple[Manifest, ...]:
    """The Secrets: one for the authority, one for the syncer, one for each pool."""
    name = job.metadata.name
    whose = {
        names.authority_secret(name): labels.of_job(name, labels.JOB_WIDE),
        names.syncer_secret(name): labels.of_job(name, labels.SYNCER),
    }
    whose.update((names.learner_secret(sets[key]), labels.of_pool(name, key)) for key in names.pools(job.spec))
    return tuple(
        _secret(job, secret, own, "Opaque" if secret == names.authority_secret(name) else "kubernetes.io/tls", data)
        for secret, own in whose.items()
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
