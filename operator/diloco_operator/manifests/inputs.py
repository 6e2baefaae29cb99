"""What the builders are given besides the job: decisions made elsewhere, and ``choose_images``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco.spec import JobSpec
from diloco_operator.manifests.errors import NoImageError
from diloco_operator.names import PoolKey, SetNames, pools

Manifest = dict[str, Any]
"""A Kubernetes object as plain JSON values."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods should run."""

    learners: Mapping[PoolKey, int]
    """Pods of each pool; 0 for a pool that is not listed."""
    syncer: int
    """0 or 1."""
    sets: SetNames = field(default_factory=dict)
    """Names of pools' StatefulSets; one that is not listed is named like a new one."""


@dataclass(frozen=True, slots=True)
class ObservedImages:
    """The images that the workloads in the cluster run."""

    syncer: str | None = None
    learners: Mapping[PoolKey, str] = field(default_factory=dict)


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


def choose_images(spec: JobSpec, observed: ObservedImages, default: str | None) -> Images:
    """Images of the manifest; else those that run already, so that a new ``default`` restarts no pod; else that.

    The syncer takes ``spec.image`` or the first pool's image: every trainer image contains both programs.

    Raises:
        NoImageError: there is no image for some pool or the syncer.
    """
    learners: dict[PoolKey, str] = {}
    for key, pool in pools(spec).items():
        image = pool.image or spec.image or observed.learners.get(key) or default
        if image is None:
            raise NoImageError(key)
        learners[key] = image
    first, pool = next(iter(pools(spec).items()))
    syncer = spec.image or pool.image or observed.syncer or default
    # Without any of these the first pool would have had none either, unless it runs already.
    return Images(syncer=syncer or learners[first], learners=learners)
