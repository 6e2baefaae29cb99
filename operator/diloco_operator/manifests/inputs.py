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
    """How many pods are to run."""

    learners: Mapping[PoolKey, int]
    """Pods of each pool; a pool that is not here has none."""
    syncer: int
    """0 or 1."""
    sets: SetNames = field(default_factory=dict)
    """What the StatefulSets of pools are called; one that is not here is called as a new one is."""


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
    """What the job's Secrets are to hold, already in the form of a Secret's ``data`` (base64)."""

    secrets: Mapping[str, Mapping[str, str]]
    """``data`` by the Secret's name."""
    reasons: tuple[str, ...] = ()
    """Why something in them is new; empty where all is as it was."""


def choose_images(spec: JobSpec, observed: ObservedImages, default: str | None) -> Images:
    """The manifest's word first; then what runs already, so that a new ``default`` restarts nobody; then ``default``.

    The syncer takes ``spec.image`` or that of the first pool: any trainer image holds both programs.

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
