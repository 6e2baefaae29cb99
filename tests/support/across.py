"""A job whose regions are in several real clusters: its manifest, the clusters, and what it is like in each of them."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diloco.spec.status import JobStatus, RegionStatus
from testbed.kind import peers
from testbed.kind.clusters import Cluster
from testbed.kind.commands import succeeds
from testbed.kind.cuts import Cut, Way
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import WAIT_SECONDS, ClusterJob, identities, manifest, of, pool
from tests.support.cluster_operator import ClusterOperator

ENDLESS = 10**12
"""Tokens that no test reaches."""


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
        """Make whatever is missing of what its owner prepares, once more."""
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


def prepared(cluster: Cluster, namespace: str, name: str) -> Far:
    """Prepare a namespace as its owner does."""
    peers.prepare(cluster, namespace)
    return Far(name, cluster, namespace)


def far_of(home: Cluster, namespace: str, other: Cluster, name: str) -> Iterator[Far]:
    """For a fixture: a prepared namespace of another cluster, with a Secret in a namespace at home that leads there."""
    found = prepared(other, f"{namespace}-{name}", name)
    give_secret(home, namespace, found.secret())
    yield found
    # While home still has a way to delete what they have elsewhere.
    home.kubectl("delete", "dilocojobs", "--all", "--namespace", namespace, timeout_seconds=WAIT_SECONDS)
    other.kubectl("delete", "namespace", found.namespace, "--wait=false")


def give_secret(home: Cluster, namespace: str, text: str) -> None:
    """Apply a Secret at home, as its user does."""
    home.kubectl("apply", "--namespace", namespace, "--filename", "-", stdin=text)


def kubeconfig_in(secret: str) -> dict[str, Any]:
    """The kubeconfig that a Secret holds."""
    found: dict[str, Any] = yaml.safe_load(yaml.safe_load(secret)["stringData"]["kubeconfig"])
    return found


def changed(secret: str, **user: Any) -> str:
    """A Secret whose kubeconfig has another user."""
    held, config = yaml.safe_load(secret), kubeconfig_in(secret)
    config["users"][0]["user"] = user
    return yaml.safe_dump({**held, "stringData": {"kubeconfig": yaml.safe_dump(config)}})


def region(name: str, cluster: str = "", **fields: Any) -> dict[str, Any]:
    """A region with one learner, ``NAME/cpu/0``, at home or in another cluster."""
    there = {"cluster": {"kubeconfigSecret": {"name": cluster}}} if cluster else {}
    return {"name": name, **there, "pools": [pool("cpu", **fields)]}


def learner(name: str) -> str:
    """The one learner of such a region."""
    return f"{name}/cpu/0"


def reachable(home: Cluster, name: str, *regions: dict[str, Any], tokens: int = ENDLESS, **spec: Any) -> dict[str, Any]:
    """A job whose syncer other clusters reach at a node of home."""
    nodes = peers.nodes_of(home)
    body = manifest(name, *regions, tokens=tokens, **spec)
    body["spec"]["syncer"]["expose"] = {"type": "NodePort", "host": nodes.addresses[nodes.control_plane]}
    return body


def api_cut(home: Cluster, *, refused: bool = False) -> Cut:
    """Between home and the API server of another cluster, on whose side it is cut."""
    return Cut(peers.nodes_of(home).all_addresses, own_port=peers.API_PORT, refused=refused)


def sync_cut(job: ClusterJob, way: Way = "both", after_bytes: int | None = None) -> Cut:
    """Between learners in another cluster, on whose side it is cut, and the syncer of a job at home."""
    peers_of_it = peers.nodes_of(job.cluster).all_addresses
    return Cut(peers_of_it, way, their_port=sync_port(job), after_bytes=after_bytes)


def sync_port(job: ClusterJob) -> int:
    """On home's nodes."""
    endpoint = job.wait_for(lambda now: bool(now.syncer and now.syncer.external_endpoint), "it can be reached").syncer
    assert endpoint is not None
    return int(endpoint.external_endpoint.rpartition(":")[2])


def steps_of(job: ClusterJob) -> dict[str, int]:
    """Inner steps of every learner, as the syncer says; empty while it does not answer."""
    account = job.account()
    return {} if account is None else {one.id: one.steps for one in account.learners}


def train_on(job: ClusterJob, *learners: str, since: Mapping[str, int] | None = None) -> dict[str, int]:
    """Wait until each of these learners has made more steps than now, by the syncer's word; returns all steps."""
    before = since or wait_until(lambda: steps_of(job), "the syncer answers", WAIT_SECONDS)
    account = job.wait_for_account(
        lambda now: all(of(now, one).steps > before[one] for one in learners), f"{', '.join(learners)} train on"
    )
    return {one.id: one.steps for one in account.learners}


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
