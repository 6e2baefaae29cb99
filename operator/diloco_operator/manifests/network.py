"""Network policies: who may connect to a job's pods. Outgoing connections are not restricted: data can be anywhere."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.names import PoolKey

_MESH_PORT: Final = 15008
"""Port to which Istio's ambient mode delivers all traffic between pods of a mesh, whatever its port (HBONE)."""
_MONITORS: Final[Manifest] = {"matchLabels": {labels.MONITORING: "true"}}
_MESH_PROBES: Final = ("169.254.7.127/32", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128")
"""Addresses from which kubelet's probes come in that mode."""


def syncer_policy(job: DiLoCoJob, operator_namespace: str) -> Manifest:
    """Who may connect to the syncer: this job's learners, and those that may read its pages.

    If it is exposed, learners connect from addresses that the user may know; their certificates identify them.
    """
    name, expose = job.metadata.name, job.spec.syncer.expose
    learners = {"podSelector": {"matchLabels": labels.learners_selector(name)}}
    outside = [{"ipBlock": {"cidr": one}} for one in expose.source_ranges]
    anybody = expose.type != "ClusterIP" and not outside
    whence = {} if anybody else {"from": [learners, *(outside if expose.type != "ClusterIP" else [])]}
    ingress = [{**whence, "ports": [_port(common.SYNC_PORT)]}, *_pages(operator_namespace, learners)]
    own = labels.of_job(name, labels.SYNCER)
    return _policy(job, names.syncer(name), own, labels.syncer_selector(name), ingress)


def learners_policy(job: DiLoCoJob, operator_namespace: str) -> Manifest:
    """Who may connect to the learners: those that may read their pages."""
    name = job.metadata.name
    own = labels.of_job(name, labels.LEARNER)
    return _policy(job, names.learners(name), own, labels.learners_selector(name), _pages(operator_namespace))


def remote_learners_policy(job: DiLoCoJob) -> Manifest:
    """The same in another cluster. The operator is not there: a namespace that is called like its own is another's."""
    name = job.metadata.name
    own = labels.of_job(name, labels.LEARNER)
    return _policy(job, names.learners(name), own, labels.learners_selector(name), _pages_for(_MONITORS))


def unit_policy(job: DiLoCoJob, key: PoolKey, pool: str, owner: Mapping[str, str] = MappingProxyType({})) -> Manifest:
    """For a pool whose learners have several pods: all of its pods may connect to each other, on any port.

    gloo and NCCL take free ports. ``pool``: its StatefulSet; ``owner``: what else tells its pods from another job's.
    """
    pods = {**labels.pool_selector(job.metadata.name, key), **owner}
    rule = {"from": [{"podSelector": {"matchLabels": pods}}], "ports": [{"protocol": "TCP"}]}
    return _policy(job, names.unit_policy(pool), labels.of_pool(job.metadata.name, key), pods, [rule])


def _pages(operator_namespace: str, *others: Manifest) -> list[Manifest]:
    """Rules for those that may read pages, and for ``others`` in a mesh, where the intended port is not visible."""
    return _pages_for({"matchLabels": {labels.NAMESPACE_NAME: operator_namespace}}, _MONITORS, others=others)


def _pages_for(*namespaces: Manifest, others: Sequence[Manifest] = ()) -> list[Manifest]:
    readers: list[Manifest] = [{"namespaceSelector": one} for one in namespaces]
    probes = [{"ipBlock": {"cidr": address}} for address in _MESH_PROBES]
    return [
        {"from": [*readers, *probes], "ports": [_port(common.HTTP_PORT)]},
        {"from": [*others, *readers], "ports": [_port(_MESH_PORT)]},
    ]


def _policy(
    job: DiLoCoJob, name: str, own: dict[str, str], selector: dict[str, str], ingress: list[Manifest]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": common.metadata(job, name, own),
        "spec": {"podSelector": {"matchLabels": selector}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}
