"""The names of a job's objects.

Deterministic: the same job always gets the same names, so that objects can be created by applying them. Every name is a
DNS label (RFC 1123) that begins with a letter, as a Service's must (RFC 1035). If the plain name would be too long,
begin with a digit or be ambiguous, it ends in eight hexadecimal digits of a digest of everything it stands for.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from diloco.spec import JobSpec
from diloco.spec.placement import Pool
from diloco_operator.cluster_state import cluster_name

NAME_LIMIT: Final = 63
"""Characters of a DNS label."""
STATEFUL_SET_LIMIT: Final = 52
"""Characters of a StatefulSet's name: its pods carry it in a label, with a hyphen and a revision of ten more."""

_DIGEST_LENGTH: Final = 8
_RESERVED_AFTER: Final = 2
_LOOKS_HASHED: Final = re.compile(r"[0-9a-f]{8}")


class PoolKey(NamedTuple):
    """A pool of a job."""

    region: str
    pool: str

    def __str__(self) -> str:
        return f"{self.region}/{self.pool}"


def pools(spec: JobSpec) -> dict[PoolKey, Pool]:
    """Every pool, in the manifest's order."""
    return {PoolKey(region.name, pool.name): pool for region in spec.regions for pool in region.pools}


def pool_of(spec: JobSpec, key: PoolKey) -> Pool:
    """One pool, without a look at those of other regions."""
    region = next(one for one in spec.regions if one.name == key.region)
    return next(one for one in region.pools if one.name == key.pool)


def clusters(spec: JobSpec) -> dict[str, str]:
    """The cluster of every region, in the manifest's order; empty: home, the cluster that the operator runs in."""
    return {
        region.name: ""
        if region.cluster is None
        else cluster_name(region.cluster.kubeconfig_secret_ref.name, region.cluster.kubeconfig_secret_ref.key)
        for region in spec.regions
    }


def syncers_pool(spec: JobSpec) -> PoolKey:
    """The pool whose image and pull secrets the syncer takes if the manifest names none for it.

    The first at home, since another cluster may have registries and Secrets of its own; else the first of all.
    """
    where, keys = clusters(spec), list(pools(spec))
    return next((key for key in keys if not where[key.region]), keys[0])


SetNames = Mapping[PoolKey, str]
"""The name of each pool's StatefulSet."""


def stateful_set(job: str, pool: PoolKey) -> str:
    """The StatefulSet of a pool's learners, ``JOB--REGION-POOL``; at most 52 characters. No other job has one so named.

    The two hyphens are where the job's name ends, and the last one where the pool's begins.
    """
    unclear = (
        "--" in job
        or "--" in pool.region
        or "-" in pool.pool
        # Plain names are kept apart from those with a digest, and learners' Secrets from syncers'.
        or _LOOKS_HASHED.fullmatch(pool.pool) is not None
        or pool.pool == "syncer"
        # Reserved where they are a name's third and fourth characters (RFC 5891, 4.2.3.1).
        or len(job) == _RESERVED_AFTER
    )
    return _fitted(f"{job}--{pool.region}-{pool.pool}", f"{job}/{pool}", STATEFUL_SET_LIMIT, unclear=unclear)


def with_units(spec: JobSpec, sets: SetNames) -> dict[PoolKey, str]:
    """Those of ``sets`` whose learners have several pods."""
    several = {key for key, pool in pools(spec).items() if pool.nodes_per_learner > 1}
    return {key: name for key, name in sets.items() if key in several}


def learners(job: str) -> str:
    """The headless Service and NetworkPolicy of all learners."""
    return _of_job(job, "learners")


def syncer(job: str) -> str:
    """The syncer's Deployment, Service, PersistentVolumeClaim and NetworkPolicy."""
    return _of_job(job, "syncer")


def exposed_syncer(job: str) -> str:
    """The Service by which learners outside the cluster reach the syncer."""
    return _of_job(job, "syncer-exposed")


def config_map(job: str) -> str:
    """The ConfigMap with the job's manifest."""
    return _of_job(job, "job")


def authority_secret(job: str) -> str:
    """The Secret with the job's certificate authorities and their keys. No pod mounts it."""
    return _of_job(job, "ca")


def syncer_secret(job: str) -> str:
    """The Secret with the syncer's certificate and key."""
    return _of_job(job, "syncer-tls")


def learner_secret(set_name: str) -> str:
    """The Secret with the certificate and key of the learners of the pool whose StatefulSet is called so."""
    return f"{set_name}-tls"


def unit_policy(set_name: str) -> str:
    """The NetworkPolicy of the pool whose StatefulSet is called so; no job's own is, as the last part differs."""
    return f"{set_name}-unit"


def stateful_sets(job: str, of: Iterable[PoolKey]) -> dict[PoolKey, str]:
    """The names of new StatefulSets."""
    return {pool: stateful_set(job, pool) for pool in of}


def syncer_host(job: str, namespace: str) -> str:
    """The syncer's name in the cluster's DNS, as learners call it and its certificate says."""
    return f"{syncer(job)}.{namespace}.svc"


def _of_job(job: str, role: str) -> str:
    return _fitted(f"{job}-{role}", f"{job}/{role}", NAME_LIMIT, unclear=False)


def _fitted(plain: str, stands_for: str, limit: int, *, unclear: bool) -> str:
    if plain[0].isdigit():
        plain, unclear = f"job-{plain}", True
    if len(plain) <= limit and not unclear:
        return plain
    digest = hashlib.sha256(stands_for.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{plain[: limit - _DIGEST_LENGTH - 1].rstrip('-')}-{digest}"
