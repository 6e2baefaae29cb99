"""A job whose regions are in several real clusters: its manifest, the clusters, and what it is like in each of them."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diloco.spec.status.job import JobStatus, RegionStatus
from testbed.kind import peers
from testbed.kind.clusters import Cluster
from testbed.kind.commands import succeeds
from testbed.kind.cuts import Cut, Way
from testbed.kind.waiting import WAIT_SECONDS
from tests.support.cluster_jobs import ClusterJob, identities, manifest, pool
from tests.support.cluster_operator import ClusterOperator
from tests.support.kubeconfigs import kubeconfig_in


@dataclass(frozen=True)
class Far:
    """A prepared namespace of another cluster, by the name of the Secret at home that leads there."""

    name: str
    cluster: Cluster
    namespace: str

    def secret(self, *flags: str) -> str:
        """A new Secret for home, as YAML."""
        return peers.kubeconfig_secret(self.cluster, self.namespace, self.name, *flags)

    def prepare(self) -> None:
        """Make whatever is missing of what its owner prepares."""
        peers.prepare(self.cluster, self.namespace)

    def job(self, name: str) -> ClusterJob:
        """What is there of a job: its objects, pods and their pages."""
        return ClusterJob(self.cluster, self.namespace, name)

    def takes(self, secret: str) -> bool:
        """Whether the API server takes the credentials of a Secret."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kubeconfig"
            path.write_text(yaml.safe_dump(kubeconfig_in(secret)), encoding="utf-8")
            path.chmod(0o600)
            return succeeds(self.cluster.kubectl_path, "--kubeconfig", path, "get", "configmaps")

    @property
    def nodes(self) -> peers.Nodes:
        return peers.nodes_of(self.cluster)

    @property
    def api_node(self) -> list[str]:
        """The node with the API server."""
        return [self.nodes.control_plane]


def far_of(home: Cluster, namespace: str, other: Cluster, name: str) -> Iterator[Far]:
    """For a fixture: a prepared namespace of another cluster, with a Secret in a namespace at home that leads there."""
    found = Far(name, other, f"{namespace}-{name}")
    found.prepare()
    give_secret(home, namespace, found.secret())
    yield found
    # While home still has a way to delete what they have elsewhere.
    home.kubectl("delete", "dilocojobs", "--all", "--namespace", namespace, timeout_seconds=WAIT_SECONDS)
    other.kubectl("delete", "namespace", found.namespace, "--wait=false")


def give_secret(home: Cluster, namespace: str, text: str) -> None:
    """Apply a Secret at home, as its user does."""
    home.kubectl("apply", "--namespace", namespace, "--filename", "-", stdin=text)


def region(name: str, cluster: str = "", **fields: Any) -> dict[str, Any]:
    """A region with one learner, ``NAME/cpu/0``, at home or in another cluster."""
    there = {"cluster": {"kubeconfigSecretRef": {"name": cluster}}} if cluster else {}
    return {"name": name, **there, "pools": [pool("cpu", **fields)]}


def learner(name: str) -> str:
    """The one learner of such a region."""
    return f"{name}/cpu/0"


def reachable(home: Cluster, name: str, *regions: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A job whose syncer other clusters reach at a node of home."""
    nodes = peers.nodes_of(home)
    body = manifest(name, *regions, **spec)
    body["spec"]["syncer"]["expose"] = {"type": "NodePort", "host": nodes.addresses[nodes.control_plane]}
    return body


def api_cut(home: Cluster, *, refused: bool = False) -> Cut:
    """Between home and the API server of another cluster, on whose side it is cut."""
    return Cut(peers.nodes_of(home).all_addresses, own_port=peers.API_PORT, refused=refused)


def sync_cut(job: ClusterJob, way: Way = "both", after_bytes: int | None = None) -> Cut:
    """Between learners in another cluster, on whose side it is cut, and the syncer of a job at home."""
    job.wait_for(lambda now: bool(now.syncer and now.syncer.external_endpoint), "it can be reached")
    port = int(endpoint(job).rpartition(":")[2])
    return Cut(peers.nodes_of(job.cluster).all_addresses, way, their_port=port, after_bytes=after_bytes)


def endpoint(job: ClusterJob) -> str:
    """Where learners of other clusters reach its syncer, by its status; empty: nowhere yet."""
    found = job.status().syncer
    return found.external_endpoint if found is not None else ""


def look_again(there: ClusterJob, pod: str) -> None:
    """Let a node give a pod at once what has changed in its volumes, for which it takes up to two minutes otherwise."""
    there.kubectl("annotate", "pod", pod, "example.com/look=again", "--overwrite")


def region_of(status: JobStatus, name: str) -> RegionStatus:
    """A region of a status."""
    return next((one for one in status.regions if one.name == name), RegionStatus(name=name))


def has_reason(job: ClusterJob, region_name: str, reason: str | None, words: str = "") -> RegionStatus:
    """Wait until a region has this reason (None: none), with ``words`` in its message."""
    status = job.wait_for(
        lambda now: (
            bool(now.regions)
            and region_of(now, region_name).reason == reason
            and words in (region_of(now, region_name).message or "")
        ),
        f"{region_name} has reason {reason} {words}",
    )
    return region_of(status, region_name)


@dataclass(frozen=True)
class Pair:
    """One job with a learner at home and one in another cluster, which trains for as long as tests need it."""

    home: Cluster
    job: ClusterJob
    west: Far
    operator: ClusterOperator

    @property
    def fars(self) -> tuple[Far, ...]:
        return (self.west,)

    def there(self, far: Far) -> ClusterJob:
        """What is of it in another cluster."""
        return far.job(self.job.name)

    def pods(self) -> dict[str, tuple[str, int]]:
        """Every pod of it: equal as long as none is restarted or replaced."""
        places = (self.job, *map(self.there, self.fars))
        return identities(pod for place in places for pod in place.pods() if not pod.leaving)


@dataclass(frozen=True)
class World(Pair):
    """The same with a third cluster."""

    north: Far

    @property
    def fars(self) -> tuple[Far, ...]:
        return (self.west, self.north)


EAST, WEST, NORTH = LEARNERS = tuple(learner(name) for name in ("east", "west", "north"))
"""The learners of `World`: at home, in the second cluster, in the third."""
