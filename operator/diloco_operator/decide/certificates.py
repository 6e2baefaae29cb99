"""What the Secrets of a job hold at a given time: the job's own authority and the certificates that it signs.

Every job has its own authority, so another job's certificates are useless to it. It outlives most jobs. One that is
lost or due is replaced at once, and its certificates with it: until all pods have the new Secrets, which takes a minute
or two, new connections between old and new ones fail.

Pure except for the ``CertificateMaker`` argument; ``now`` is an argument. Data that cannot be read is replaced, with a
reason.
"""

import base64
import binascii
import datetime as dt
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from diloco.spec.names.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.manifests.inputs import Certificates
from diloco_operator.names import PoolKey, SetNames
from diloco_operator.signing import (
    CLOCK_SKEW,
    LEAF_LIFE,
    Authority,
    CertificateMaker,
    Leaf,
    LeafNames,
    UnusableError,
    certificate_pem,
    key_pem,
    new_authority,
    new_leaf,
    read_authority,
    read_leaf,
    worn,
)

CA, CERTIFICATE, KEY, AUTHORITY_KEY = "ca.crt", "tls.crt", "tls.key", "ca.key"
REVOKED_FILE: Final = "revoked.txt"
"""In the syncer's Secret, if certificates are revoked: the pools, and as of when (`revoked_list`)."""

SecretData = Mapping[str, str]
"""A Secret's ``data``: base64 by key."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The job that the certificates are for."""

    job: str
    namespace: str
    pools: SetNames
    """Its pools, and the names of their StatefulSets."""
    not_before: Mapping[PoolKey, dt.datetime] = field(default_factory=dict)
    """By pool: certificates that were made before this time are revoked. A time that has not come yet has no effect."""
    units: Collection[PoolKey] = ()
    """Pools whose learners have several nodes."""

    def revoked(self, now: dt.datetime) -> dict[PoolKey, dt.datetime]:
        """What is in force by a clock that may be a little behind the API server's, by which users revoke."""
        # Certificates have whole seconds.
        times = {pool: time.replace(microsecond=0) for pool, time in self.not_before.items()}
        return {pool: time for pool, time in times.items() if time <= now + CLOCK_SKEW}


def revoked_list(revoked: Mapping[PoolKey, dt.datetime], now: dt.datetime) -> str:
    """What the syncer reads: pools whose revoked certificates may still be valid, one a line."""
    lines = (
        f"{pool} {(time - CLOCK_SKEW).astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}\n"
        for pool, time in sorted(revoked.items())
        if now < time + LEAF_LIFE
    )
    return "".join(lines)


def learner_names(job: str, pool: PoolKey, *, unit: bool = False) -> LeafNames:
    """The learners of one pool: the holder may speak for each of them.

    ``unit``: they have several nodes, of which the further ones connect to the first.
    """
    uris = (f"diloco://{job}/learner/{pool.region}/{pool.pool}",)
    return LeafNames("diloco learner", "both" if unit else "client", uris=uris)


def certificates(
    who: JobIdentity,
    live: Mapping[str, SecretData],
    now: dt.datetime,
    maker: CertificateMaker,
    remote: Mapping[str, SecretData] = MappingProxyType({}),
) -> Certificates:
    """The contents of the job's Secrets at ``now``, given the current ones, by name: ``live`` and ``remote``.

    While nothing is due, they equal these and there is no reason. ``remote`` are learners' Secrets in other clusters,
    whose owners can write to them: a certificate there stays if the authority signed it, and nothing else there is
    believed.
    """
    authority, reasons = _authority(who, live, now, maker)
    bundle = certificate_pem(authority.certificate)
    secrets = {names.authority_secret(who.job): _encoded({CA: bundle, AUTHORITY_KEY: key_pem(authority.key)})}
    syncer = names.syncer_secret(who.job)
    # Learners check this name wherever they reach the syncer. So no certificate changes with an address.
    name_of_syncer = syncer_name(who.job, who.namespace)
    wanted, not_before = {syncer: LeafNames("diloco syncer", "server", dns=(name_of_syncer,))}, dict[str, dt.datetime]()
    revoked = who.revoked(now)
    for pool, set_name in who.pools.items():
        name = names.learner_secret(set_name)
        wanted[name] = learner_names(who.job, pool, unit=pool in who.units)
        if pool in revoked:
            not_before[name] = revoked[pool]
    of_authority = _encoded({CA: bundle})
    for name, subject in wanted.items():
        found = _checked(remote.get(name, live.get(name)), subject, authority, bundle)
        reason = found.reason(now)
        if reason is None and name in not_before and found.made_at < not_before[name]:
            reason = "was revoked"
        held = found.held
        if reason is not None:
            # It may have been revoked as of a moment after now, by a clock that is a little ahead.
            held = _pem(new_leaf(authority, subject, max(now, not_before.get(name, now)), maker))
            reasons = (*reasons, f"{name}: {reason}")
        secrets[name] = {**of_authority, **held}
    listed = revoked_list(revoked, now)
    if listed:
        secrets[syncer] |= _encoded({REVOKED_FILE: listed.encode()})
    return Certificates(secrets, reasons)


def _authority(
    who: JobIdentity, live: Mapping[str, SecretData], now: dt.datetime, maker: CertificateMaker
) -> tuple[Authority, tuple[str, ...]]:
    name = names.authority_secret(who.job)
    problem: str | None = "is missing"
    if name in live:
        try:
            found = read_authority(_decoded(live[name], CA), _decoded(live[name], AUTHORITY_KEY))
            problem = found.due(now)
        except UnusableError as error:
            problem = str(error)
        else:
            if problem is None:
                return found, ()
    return new_authority(f"diloco {who.job}", now, maker), (f"{name}: {problem}",)


class _Checked(NamedTuple):
    """What is known of a certificate and its key at any time."""

    problem: str | None = None
    """Why they cannot stay; None: nothing but time speaks against it."""
    start: dt.datetime = dt.datetime.max.replace(tzinfo=dt.UTC)
    end: dt.datetime = dt.datetime.max.replace(tzinfo=dt.UTC)
    held: SecretData = MappingProxyType({})
    """Both as they are to be in the Secret."""

    @property
    def made_at(self) -> dt.datetime:
        """When it was created, to the second."""
        return self.start + CLOCK_SKEW

    def reason(self, now: dt.datetime) -> str | None:
        """Why it cannot stay; None: it can."""
        return self.problem or worn(self.start, self.end, now)


_MOST_CHECKED: Final = 1 << 14
_known: dict[bytes, _Checked] = {}
"""Verdicts by a digest of all that they depend on. A signature takes 10,000 times as long to verify as to find here."""


def _checked(data: SecretData | None, subject: LeafNames, authority: Authority, bundle: bytes) -> _Checked:
    """The verdict about a certificate, whose signature is verified once; ``bundle``: the authority's certificate."""
    if data is None:
        return _Checked("is missing")
    told = "\0".join((str(data.get(CERTIFICATE)), str(data.get(KEY)), repr(subject)))
    digest = hashlib.sha256(bundle + told.encode(errors="replace")).digest()
    found = _known.get(digest)
    if found is None:
        found = _check(data, subject, authority)
        if len(_known) >= _MOST_CHECKED:
            del _known[next(iter(_known))]
        _known[digest] = found
    return found


def _check(data: SecretData, subject: LeafNames, authority: Authority) -> _Checked:
    try:
        leaf = read_leaf(_decoded(data, CERTIFICATE), _decoded(data, KEY))
    except UnusableError as error:
        return _Checked(str(error))
    if not authority.signed(leaf.certificate):
        return _Checked("is signed by another authority")
    if not leaf.is_for(subject):
        return _Checked("is for another use")
    held = _pem(leaf)
    # Usually the same text, which is then in memory once.
    same = {key: data[key] if data[key] == value else value for key, value in held.items()}
    return _Checked(None, leaf.certificate.not_valid_before_utc, leaf.certificate.not_valid_after_utc, same)


def _pem(leaf: Leaf) -> dict[str, str]:
    return _encoded({CERTIFICATE: certificate_pem(leaf.certificate), KEY: key_pem(leaf.key)})


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode("ascii") for key, value in data.items()}


def _decoded(data: SecretData, key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key, ""), validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UnusableError(f"{key} is not base64") from error
