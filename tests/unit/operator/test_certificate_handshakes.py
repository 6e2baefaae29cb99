"""Real TLS handshakes with the Secrets' contents: who is accepted, and that a rollover interrupts no connection."""

import base64
import datetime as dt
import ssl
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography import x509

from diloco.spec.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.decide.certificates import SETTLING, JobIdentity, certificates
from diloco_operator.names import PoolKey
from diloco_operator.signing import AUTHORITY_LIFE, RandomCertificateMaker

POOL = PoolKey("us-east", "fast")
JOB = JobIdentity("job", "team", names.stateful_sets("job", [POOL]))
HOST = names.syncer_host("job", "team")
MAKER = RandomCertificateMaker()
# The library checks against the real clock, so everything is made as if in the past.
NOW = dt.datetime.now(dt.UTC)

STRANGER = "signature failure|unable to get local issuer|self-signed certificate in certificate chain"
"""How OpenSSL says, by its version, that it does not know who signed."""

Held = Mapping[str, Mapping[str, str]]


def made(age: dt.timedelta, held: Held | None = None, who: JobIdentity = JOB) -> Held:
    return certificates(who, held or {}, NOW - age, MAKER).secrets


def context(held: Held, secret: str, directory: Path, side: ssl.Purpose) -> ssl.SSLContext:
    """The TLS context of a pod that mounts ``secret``."""
    files = {key: directory / f"{secret}-{key}" for key in ("ca.crt", "tls.crt", "tls.key")}
    for key, path in files.items():
        path.write_bytes(base64.b64decode(held[secret][key]))
    found = ssl.create_default_context(side, cafile=files["ca.crt"])
    found.verify_mode = ssl.CERT_REQUIRED
    # Default from Python 3.13 on: extensions as RFC 5280 requires.
    found.verify_flags |= ssl.VERIFY_X509_STRICT
    found.load_cert_chain(files["tls.crt"], files["tls.key"])
    return found


def peers_names(syncer: Held, learner: Held, directory: Path, host: str = HOST, pool: PoolKey = POOL) -> list[str]:
    """Let a learner connect to the syncer; returns the names in its certificate.

    Raises:
        ssl.SSLError: one of them rejected the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = context(syncer, names.syncer_secret("job"), directory, ssl.Purpose.CLIENT_AUTH)
    client_side = context(
        learner, names.learner_secret(names.stateful_set("job", pool)), directory, ssl.Purpose.SERVER_AUTH
    )
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = {client, server}
    while waiting:
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(side)
    shown = server.getpeercert(binary_form=True)
    assert shown is not None
    extensions = x509.load_der_x509_certificate(shown).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.UniformResourceIdentifier
    )


def test_a_learner_and_its_syncer_know_each_other(tmp_path: Path) -> None:
    held = made(dt.timedelta(0))
    assert peers_names(held, held, tmp_path) == ["diloco://job/learner/us-east/fast"]


@pytest.mark.parametrize(
    "host",
    [syncer_name("job", "team"), "job-syncer", "job-syncer.team", "job-syncer.team.svc.cluster.local", "localhost"],
)
def test_the_syncer_is_known_by_each_of_its_names(host: str, tmp_path: Path) -> None:
    held = made(dt.timedelta(0))
    assert peers_names(held, held, tmp_path, host)


def test_the_syncer_is_not_believed_under_another_name(tmp_path: Path) -> None:
    held = made(dt.timedelta(0))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        peers_names(held, held, tmp_path, "other-syncer.team.svc")


def test_another_jobs_learner_is_turned_away(tmp_path: Path) -> None:
    ours, other = made(dt.timedelta(0)), made(dt.timedelta(0))
    name = names.learner_secret(names.stateful_set("job", POOL))
    # It trusts our syncer, and presents a certificate of another job's authority with the same names.
    stranger = {name: {**other[name], "ca.crt": ours[name]["ca.crt"]}}
    with pytest.raises(ssl.SSLCertVerificationError, match=STRANGER):
        peers_names(ours, stranger, tmp_path)


def test_a_learner_believes_no_other_jobs_syncer(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=STRANGER):
        peers_names(made(dt.timedelta(0)), made(dt.timedelta(0)), tmp_path)


def test_an_expired_certificate_opens_nothing(tmp_path: Path) -> None:
    held = made(dt.timedelta(days=91))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        peers_names(held, held, tmp_path)
    renewed = made(dt.timedelta(0), held)
    assert peers_names(renewed, renewed, tmp_path)


def test_a_learner_cannot_pass_for_the_syncer(tmp_path: Path) -> None:
    held = made(dt.timedelta(0))
    posing = {names.syncer_secret("job"): held[names.learner_secret(names.stateful_set("job", POOL))]}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"purpose|Hostname mismatch"):
        peers_names(posing, held, tmp_path)


def test_the_syncer_cannot_pass_for_a_learner(tmp_path: Path) -> None:
    held = made(dt.timedelta(0))
    posing = {names.learner_secret(names.stateful_set("job", POOL)): held[names.syncer_secret("job")]}
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        peers_names(held, posing, tmp_path)


def rollover() -> list[Held]:
    """The Secrets before, during and after a rollover of the authority, all of them valid now."""
    settled = dt.timedelta(minutes=1)
    due = settled + SETTLING
    # The leafs are a month old when the authority comes to its last third.
    before = made(due + dt.timedelta(days=30), made(due + AUTHORITY_LIFE * 2 / 3))
    during = made(due, before)
    return [before, during, made(settled, during)]


def test_through_a_rollover_new_and_old_secrets_get_on(tmp_path: Path) -> None:
    phases = rollover()
    name = names.learner_secret(names.stateful_set("job", POOL))
    assert [one != two for one, two in pairwise(phase[name]["ca.crt"] for phase in phases)] == [True, False]
    assert [one != two for one, two in pairwise(phase[name]["tls.crt"] for phase in phases)] == [False, True]
    for early, late in pairwise(phases):
        # Kubelets may update the files of the two sides minutes apart.
        for syncer, learner in ((early, early), (early, late), (late, early), (late, late)):
            assert peers_names(syncer, learner, tmp_path)


def test_without_the_step_between_a_rollover_would_cut_off_who_is_late(tmp_path: Path) -> None:
    before, _, after = rollover()
    with pytest.raises(ssl.SSLCertVerificationError):
        peers_names(before, after, tmp_path)


def test_who_lost_the_authority_keeps_talking_until_the_new_one_signs(tmp_path: Path) -> None:
    settled = dt.timedelta(minutes=1)
    before = made(SETTLING + settled)
    lost = {name: data for name, data in before.items() if name != names.authority_secret("job")}
    during = made(SETTLING + settled, lost)
    phases = [before, during, made(settled, during)]
    for early, late in pairwise(phases):
        for syncer, learner in ((early, late), (late, early), (late, late)):
            assert peers_names(syncer, learner, tmp_path)
