"""What the Secrets of a job hold at a given time: the job's own authority and the certificates that it signs.

Every job has its own authority, so another job's certificates are useless to it. A new authority takes over in two
steps, because pods see a changed Secret with a delay of up to minutes: first all pods are given both authorities to
trust, and only ``SETTLING`` later does the new one sign what they present. The old one stays trusted until it expires.

Pure except for the ``CertificateMaker`` argument; ``now`` is an argument. Data that cannot be read is replaced, with a
reason.
"""

import base64
import binascii
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from diloco.spec.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.decide.revocation import Revoked
from diloco_operator.manifests.inputs import Certificates
from diloco_operator.names import PoolKey, SetNames
from diloco_operator.signing import (
    Authority,
    CertificateMaker,
    Leaf,
    LeafNames,
    UnusableError,
    certificate_pem,
    key_pem,
    new_authority,
    new_leaf,
    read_authorities,
    read_keys,
    read_leaf,
    sorted_newest_first,
)

SETTLING: Final = dt.timedelta(hours=1)
"""Time from when a new authority is distributed until it signs. Kubelets update a changed Secret within two minutes,
unless they are cut off (ours)."""

CA, CERTIFICATE, KEY, AUTHORITY_KEY = "ca.crt", "tls.crt", "tls.key", "ca.key"
REVOKED_FILE: Final = "revoked.txt"
"""In the syncer's Secret, if certificates are revoked: the pools, and as of when (`Revoked.file`)."""

SecretData = Mapping[str, str]
"""A Secret's ``data``: base64 by key."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The job that the certificates are for."""

    job: str
    namespace: str
    pools: SetNames
    """Its pools, and the names of their StatefulSets."""
    revoked: Revoked = field(default_factory=Revoked)
    """Whose certificates have been revoked."""
    created: dt.datetime | None = None
    """When the job was made, by the API server's clock; None: not known."""

    def premature(self, one: Authority | Leaf, now: dt.datetime) -> bool:
        """Whether it is not valid yet, because the clock was ahead when it was made.

        A clock that is behind the job's creation is wrong itself, and nothing is judged by it.
        """
        return one.premature(now) and self.created is not None and now >= self.created


def syncer_names(who: JobIdentity) -> LeafNames:
    """The syncer: the name that learners check wherever they reach it, and those that earlier versions' learners check.

    The latter are what its Service can be called by, and localhost for ``kubectl port-forward``. No address of another
    kind is in a certificate, so none has to be made anew when addresses change.
    """
    host = names.syncer(who.job)
    called = (host, f"{host}.{who.namespace}", f"{host}.{who.namespace}.svc")
    fixed = syncer_name(who.job, who.namespace)
    return LeafNames("diloco syncer", "server", dns=(fixed, *called, f"{called[-1]}.cluster.local", "localhost"))


def revoked_list(data: SecretData) -> str:
    """The list of revoked certificates in the syncer's Secret; empty: there is none that can be read."""
    try:
        return _decoded(data, REVOKED_FILE).decode("utf-8", "replace")
    except UnusableError:
        return ""


def learner_names(job: str, pool: PoolKey) -> LeafNames:
    """The learners of one pool: the holder may speak for each of them."""
    return LeafNames("diloco learner", "client", uris=(f"diloco://{job}/learner/{pool.region}/{pool.pool}",))


def certificates(
    who: JobIdentity,
    live: Mapping[str, SecretData],
    now: dt.datetime,
    maker: CertificateMaker,
    abroad: Mapping[str, SecretData] = MappingProxyType({}),
) -> Certificates:
    """The contents of the job's Secrets at ``now``, given the current ones, by name: ``live`` and ``abroad``.

    While nothing is due, they equal these and there is no reason. ``abroad`` are learners' Secrets in other clusters,
    whose owners can write to them: a certificate there stays if a known authority signed it, and nothing else there is
    believed.
    """
    trust, reasons = _authorities(who, live, now, maker)
    bundle = b"".join(certificate_pem(one.certificate) for one in trust.authorities)
    keys = b"".join(key_pem(one.key) for one in trust.signers if one.key is not None)
    secrets = {names.authority_secret(who.job): _encoded({CA: bundle, AUTHORITY_KEY: keys})}
    syncer = names.syncer_secret(who.job)
    wanted, not_before = {syncer: syncer_names(who)}, dict[str, dt.datetime]()
    for pool, set_name in who.pools.items():
        name = names.learner_secret(set_name)
        wanted[name] = learner_names(who.job, pool)
        if pool in who.revoked.before:
            not_before[name] = who.revoked.before[pool]
    for name, subject in wanted.items():
        leaf, reason = _leaf(abroad.get(name, live.get(name)), subject, trust, now)
        if leaf is not None and who.premature(leaf, now):
            leaf, reason = None, "is not valid yet: the operator's clock was ahead when it was made"
        if leaf is not None and name in not_before and leaf.made_at < not_before[name]:
            leaf, reason = None, "was revoked"
        if leaf is None:
            # By a clock that is ahead it was revoked a little later than now; so its successor is not.
            leaf = new_leaf(trust.signer, subject, max(now, not_before.get(name, now)), maker)
            reasons = (*reasons, f"{name}: {reason}")
        held = {CA: bundle, CERTIFICATE: certificate_pem(leaf.certificate), KEY: key_pem(leaf.key)}
        secrets[name] = _encoded(held)
    listed = who.revoked.file(now)
    if listed:
        secrets[syncer] |= _encoded({REVOKED_FILE: listed.encode()})
    return Certificates(secrets, reasons)


@dataclass(frozen=True, slots=True)
class _Trust:
    authorities: tuple[Authority, ...]
    """All that are trusted, the newest first."""
    signer: Authority
    settled: bool
    """Every process has had time to get ``signer`` as a trusted authority."""

    @property
    def signers(self) -> tuple[Authority, ...]:
        """The authority that signs now and those that will; older keys are not kept."""
        return self.authorities[: self.authorities.index(self.signer) + 1]

    def objection(self, leaf: Leaf) -> str | None:
        """Why ``leaf`` must not be presented, whatever its age and names; None: it may."""
        issuers = [one for one in self.authorities if one.signed(leaf.certificate)]
        if not issuers:
            return "is signed by an authority that is not trusted"
        if self.settled and issuers[0] not in self.signers:
            return "is signed by an authority that has been replaced"
        return None


def _authorities(
    who: JobIdentity, live: Mapping[str, SecretData], now: dt.datetime, maker: CertificateMaker
) -> tuple[_Trust, tuple[str, ...]]:
    name = names.authority_secret(who.job)
    found, problem = _read_authorities(live.get(name))
    if problem is not None:
        # Processes trust the authorities in their own Secrets, so they stay connected while the new one becomes known.
        elsewhere = (data for secret, data in live.items() if secret != name)
        found = _merged(found, (one for data in elsewhere for one in _trusted_by(data)))
    found = sorted_newest_first(one for one in found if not (one.expired(now) or who.premature(one, now)))
    able = [one for one in found if one.key is not None]
    problem = problem or (able[0].due(now) if able else "contains no valid authority with its key")
    if problem is not None:
        fresh = new_authority(f"diloco {who.job}", now, maker)
        found, able = sorted_newest_first([fresh, *found]), list(sorted_newest_first([fresh, *able]))
    settled = [one for one in able if now - one.made_at >= SETTLING]
    # If none is known to every process, the oldest is known to most of them.
    trust = _Trust(found, settled[0] if settled else able[-1], settled=bool(settled))
    return trust, (f"{name}: {problem}",) if problem is not None else ()


def _read_authorities(data: SecretData | None) -> tuple[tuple[Authority, ...], str | None]:
    """The readable authorities, and the problem with the rest."""
    if data is None:
        return (), "is missing"
    try:
        found = read_authorities(_decoded(data, CA))
    except UnusableError as error:
        return (), f"{CA} {error}"
    try:
        keys, problem = read_keys(_decoded(data, AUTHORITY_KEY)), None
    except UnusableError as error:
        keys, problem = (), f"{AUTHORITY_KEY} {error}"
    by_public_key = [(key.public_key(), key) for key in keys]
    return tuple(
        Authority(one, next((key for public, key in by_public_key if public == one.public_key()), None))
        for one in found
    ), problem


def _trusted_by(data: SecretData) -> tuple[Authority, ...]:
    try:
        return tuple(Authority(one, None) for one in read_authorities(_decoded(data, CA)))
    except UnusableError:
        return ()


def _merged(first: Sequence[Authority], more: Iterable[Authority]) -> tuple[Authority, ...]:
    by_certificate = {one.certificate: one for one in more}
    by_certificate.update((one.certificate, one) for one in first)
    return tuple(by_certificate.values())


def _leaf(
    data: SecretData | None, subject: LeafNames, trust: _Trust, now: dt.datetime
) -> tuple[Leaf | None, str | None]:
    """The leaf if it can stay, otherwise why not."""
    if data is None:
        return None, "is missing"
    try:
        leaf = read_leaf(_decoded(data, CERTIFICATE), _decoded(data, KEY))
    except UnusableError as error:
        return None, str(error)
    reason = leaf.due(now) or trust.objection(leaf)
    if reason is None and not leaf.has_names(subject):
        reason = "is for other names"
    return (None, reason) if reason else (leaf, None)


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode("ascii") for key, value in data.items()}


def _decoded(data: SecretData, key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key, ""), validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UnusableError(f"{key} is not base64") from error
