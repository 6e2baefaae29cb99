"""The Services by which a job's pods are found."""

from typing import Final

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.inputs import Manifest

_BEFORE_READY: Final[Manifest] = {"publishNotReadyAddresses": True}
"""A syncer that has restarted takes merges back from learners before it is ready, so they must reach it then."""


def learners(job: DiLoCoJob) -> Manifest:
    """The headless Service that a StatefulSet requires: a DNS name for each learner, ready or not."""
    name = job.metadata.name
    return _service(
        job,
        names.learners(name),
        labels.LEARNER,
        {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels.learners_selector(name),
            "ports": [_port(common.HTTP_PORT_NAME, common.HTTP_PORT)],
        },
    )


def syncer(job: DiLoCoJob) -> Manifest:
    """The Service through which learners of this cluster, the operator and metrics collectors reach the syncer."""
    name, expose = job.metadata.name, job.spec.syncer.expose
    return _service(
        job,
        names.syncer(name),
        labels.SYNCER,
        {
            "type": "ClusterIP",
            **_BEFORE_READY,
            "selector": labels.syncer_selector(name),
            "ports": [
                _port(common.SYNC_PORT_NAME, common.SYNC_PORT),
                _port(common.HTTP_PORT_NAME, common.HTTP_PORT),
            ],
        },
        annotations=expose.annotations if expose.type == "ClusterIP" else None,
    )


def exposed_syncer(job: DiLoCoJob) -> Manifest | None:
    """The Service through which learners outside the cluster reach the syncer, if ``spec.syncer.expose`` is set.

    It is a Service of its own, so that the HTTP port, which requires no certificate, is not exposed.
    """
    name, expose = job.metadata.name, job.spec.syncer.expose
    if expose.type == "ClusterIP":
        return None
    ranges: Manifest = {}
    if expose.source_ranges and expose.type != "External":
        # Local: otherwise a node's address replaces the learner's, and the policy would reject it.
        ranges = {"externalTrafficPolicy": "Local"}
        if expose.type == "LoadBalancer":
            ranges["loadBalancerSourceRanges"] = list(expose.source_ranges)
    return _service(
        job,
        names.exposed_syncer(name),
        labels.SYNCER,
        {
            **ranges,
            # What leads there from outside needs a Service with no other port, of any kind.
            "type": "ClusterIP" if expose.type == "External" else expose.type,
            **_BEFORE_READY,
            "selector": labels.syncer_selector(name),
            "ports": [_port(common.SYNC_PORT_NAME, common.SYNC_PORT)],
        },
        annotations=expose.annotations,
    )


def _service(
    job: DiLoCoJob, name: str, component: str, spec: Manifest, annotations: dict[str, str] | None = None
) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": common.metadata(job, name, labels.of_job(job.metadata.name, component), annotations),
        "spec": spec,
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
