"""What the builders are given besides the job: decisions made elsewhere, and ``choose_images``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.spec import JobSpec
from diloco_operator.manifests.errors import NoImageError
from diloco_operator.names import PoolKey, pool_of, pools, syncers_pool

Manifest = dict[str, Any]
"""A Kubernetes object as plain JSON values."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An object and the cluster that it belongs in."""

    body: Manifest
    cluster: str = ""
    """Empty: home, the cluster that the operator runs in. Otherwise its name (`cluster_name`)."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Another cluster, as far as objects there depend on it."""

    namespace: str
    """Where the job's objects are in that cluster."""
    home_id: str
    """The id of the home that the job is at. Not empty."""
    endpoint: str = ""
    """``host:port`` by which learners there reach the syncer; empty: not known yet, so they wait for it."""
    assigns_users: bool = False
    """Whether its platform chooses user and groups of pods."""


Remotes = Mapping[str, Remote]
"""The other clusters for which objects are made, by name (`cluster_name`); for those not listed, none are made."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods should run."""

    learners: Mapping[PoolKey, int]
    """Pods of each pool; 0 for a pool that is not listed."""
    syncer: int
    """0 or 1."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images to run."""

    syncer: str
    learners: Mapping[PoolKey, str]


@dataclass(frozen=True, slots=True)
class Certificates:
    """The contents of the job's Secrets, as a Secret's ``data`` (base64)."""

    secrets: Mapping[str, Mapping[str, str]]
    """``data`` by the Secret's name."""
    reasons: tuple[str, ...] = ()
    """Why contents have changed; empty if they have not."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a job's objects are made from, besides the job and the operator's settings."""

    images: Images
    scale: Scale
    certificates: Certificates
    remotes: Remotes = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    """Files for the syncer with orders about single learners, by name (`diloco.spec.names.learner_orders`)."""


def choose_images(spec: JobSpec, default: str | None) -> Images:
    """Images of the manifest, else the default.

    The syncer takes its own, ``spec.image``, the default or the image of `syncers_pool`: every trainer image contains
    both programs.

    Raises:
        NoImageError: there is no image for some pool or the syncer.
    """
    learners: dict[PoolKey, str] = {}
    for key, pool in pools(spec).items():
        image = pool.image or spec.image or default
        if image is None:
            raise NoImageError(key)
        learners[key] = image
    syncer = spec.syncer.image or spec.image or default or pool_of(spec, syncers_pool(spec)).image
    assert syncer is not None, "that pool would have had no image either"
    return Images(syncer=syncer, learners=learners)
