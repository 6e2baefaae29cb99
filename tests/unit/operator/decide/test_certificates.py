"""The contents of a job's Secrets: created once, kept, renewed, repaired if damaged, and revoked."""

import base64
import datetime as dt
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from diloco.spec.names.syncer_name import syncer_name
from diloco.wire.server.revocations import read_revoked
from diloco_operator import names
from diloco_operator.decide.certificates import REVOKED_FILE, JobIdentity, certificates, revoked_list
from diloco_operator.names import PoolKey
from diloco_operator.signing import AUTHORITY_LIFE, CLOCK_SKEW, LEAF_LIFE, RandomCertificateMaker

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOON = START + dt.timedelta(hours=12, seconds=0.5)
POOLS = (PoolKey("us-east", "fast"), PoolKey("us-west", "old"))
JOB = JobIdentity("job", "team", names.stateful_sets("job", POOLS))
CA, SYNCER = names.authority_secret("job"), names.syncer_secret("job")
FAST, OLD = (names.learner_secret(names.stateful_set("job", pool)) for pool in POOLS)
MAKER = RandomCertificateMaker()

Held = Mapping[str, Mapping[str, str]]


def at(now: dt.datetime, held: Held, who: JobIdentity = JOB) -> tuple[Held, tuple[str, ...]]:
    found = certificates(who, held, now, MAKER)
    return found.secrets, found.reasons


@pytest.fixture(scope="module")
def first() -> Held:
    return at(START, {})[0]


def bundle(held: Held, secret: str = SYNCER) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(base64.b64decode(held[secret]["ca.crt"]))


def leaf(held: Held, secret: str = SYNCER) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(held[secret]["tls.crt"]))


def names_of(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *found.get_values_for_type(x509.UniformResourceIdentifier)]


def test_a_new_job_gets_an_authority_and_a_certificate_for_each_who_speaks() -> None:
    held, reasons = at(START, {})
    assert list(held) == [CA, SYNCER, FAST, OLD]
    assert list(reasons) == [f"{name}: is missing" for name in held]
    assert set(held[CA]) == {"ca.crt", "ca.key"}
    assert set(held[SYNCER]) == set(held[FAST]) == {"ca.crt", "tls.crt", "tls.key"}


def test_certificates_name_whom_their_holder_may_be(first: Held) -> None:
    assert names_of(leaf(first, SYNCER)) == ["job.team.syncer.diloco.internal"]
    assert names_of(leaf(first, FAST)) == ["diloco://job/learner/us-east/fast"]
    assert names_of(leaf(first, OLD)) == ["diloco://job/learner/us-west/old"]


def test_the_authoritys_key_is_in_its_own_secret_only(first: Held) -> None:
    assert b"PRIVATE KEY" in base64.b64decode(first[CA]["ca.key"])
    keys = {data["tls.key"] for name, data in first.items() if name != CA}
    assert len(keys) == 3
    assert first[CA]["ca.key"] not in keys


@pytest.mark.parametrize(
    "later",
    [dt.timedelta(0), LEAF_LIFE * 2 / 3 - dt.timedelta(minutes=10), dt.timedelta(hours=-2)],
    ids=["at once", "before the last third", "by a clock that was set back"],
)
def test_nothing_changes_while_nothing_is_due(first: Held, later: dt.timedelta) -> None:
    assert at(START + later, first) == (first, ())


def test_leaves_are_renewed_with_a_third_of_life_left_and_the_ca_is_kept(first: Held) -> None:
    held, reasons = at(START + LEAF_LIFE * 2 / 3, first)
    assert held[CA] == first[CA]
    assert [reason.partition(";")[2] for reason in reasons] == [" at most a third of its lifetime is left"] * 3
    for secret in (SYNCER, FAST, OLD):
        assert held[secret]["ca.crt"] == first[secret]["ca.crt"]
        assert held[secret]["tls.key"] != first[secret]["tls.key"]


def test_a_new_pool_gets_its_own_and_the_others_keep_theirs(first: Held) -> None:
    added = PoolKey("us-west", "new")
    held, reasons = at(START, first, JobIdentity("job", "team", names.stateful_sets("job", (*POOLS, added))))
    assert reasons == (f"{names.learner_secret(names.stateful_set('job', added))}: is missing",)
    assert {name: held[name] for name in first} == first


Damage = Callable[[Held], Mapping[str, str] | None]
"""From all Secrets: what becomes of the one of a pool."""

DAMAGES: dict[str, tuple[Damage, str]] = {
    "deleted": (lambda _: None, "is missing"),
    "no base64": (lambda held: {**held[FAST], "tls.crt": "%%"}, "tls.crt is not base64"),
    "empty": (lambda held: {**held[FAST], "tls.crt": ""}, "contains no readable certificate"),
    "torn": (lambda held: {**held[FAST], "tls.crt": held[FAST]["tls.crt"][:400]}, "contains no readable certificate"),
    "mistaken": (lambda held: {**held[FAST], "tls.key": held[FAST]["tls.crt"]}, "contains no readable key"),
    "less": (lambda held: {key: held[FAST][key] for key in ("ca.crt", "tls.crt")}, "contains no readable key"),
    "another pool's key": (
        lambda held: {**held[FAST], "tls.key": held[OLD]["tls.key"]},
        "contains a key that does not match the certificate",
    ),
    "another pool's": (lambda held: held[OLD], "is for another use"),
    "another job's": (lambda _: at(START, {})[0][FAST], "is signed by another authority"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_leaf_alone_is_made_anew(first: Held, kind: str) -> None:
    damage, told = DAMAGES[kind]
    damaged = damage(first)
    others = {name: data for name, data in first.items() if name != FAST}
    held, reasons = at(START, others if damaged is None else {**others, FAST: damaged})
    assert reasons == (f"{FAST}: {told}",)
    assert {name: data for name, data in held.items() if name != FAST} == others
    assert names_of(leaf(held, FAST)) == ["diloco://job/learner/us-east/fast"]
    assert leaf(held, FAST).issuer == bundle(held)[0].subject


def test_a_bundle_edited_by_hand_is_put_right_and_the_certificate_kept(first: Held) -> None:
    held, reasons = at(START, {**first, FAST: {**first[FAST], "ca.crt": ""}})
    assert (held, reasons) == (first, ())


LOSSES: dict[str, Callable[[Held], Held]] = {
    "the Secret": lambda held: {name: data for name, data in held.items() if name != CA},
    "its key": lambda held: {**held, CA: {**held[CA], "ca.key": "eA=="}},
    "its certificate": lambda held: {**held, CA: {**held[CA], "ca.crt": "eA=="}},
    "all of its data": lambda held: {**held, CA: {}},
    "its certificate, for a learner's": lambda held: {
        **held,
        CA: {"ca.crt": held[FAST]["tls.crt"], "ca.key": held[FAST]["tls.key"]},
    },
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_authority_is_replaced_with_all_that_it_signed(first: Held, loss: str) -> None:
    held, reasons = at(START, LOSSES[loss](first))
    assert [reason.partition(":")[0] for reason in reasons] == [CA, SYNCER, FAST, OLD]
    for secret in (SYNCER, FAST, OLD):
        assert bundle(held, secret) != bundle(first, secret)
        assert leaf(held, secret).issuer == bundle(held, secret)[0].subject
    assert at(START + dt.timedelta(hours=1), held) == (held, ())


def test_an_authority_is_replaced_with_a_third_of_its_life_left(first: Held) -> None:
    due = START + AUTHORITY_LIFE * 2 / 3
    held, reasons = at(due, first)
    assert reasons[0].endswith("at most a third of its lifetime is left")
    assert len(bundle(held)) == 1
    assert bundle(held) != bundle(first)
    assert leaf(held).not_valid_after_utc == due + LEAF_LIFE


def test_a_pool_of_units_gets_a_certificate_for_both_ends(first: Held) -> None:
    units = replace(JOB, units={POOLS[0]})
    held, reasons = at(START, first, units)
    assert reasons == (f"{FAST}: is for another use",)
    assert {name: held[name] for name in first if name != FAST} == {name: first[name] for name in first if name != FAST}
    assert names_of(leaf(held, FAST)) == ["diloco://job/learner/us-east/fast"]
    assert at(START, held, units) == (held, ())


def end(held: Held, secret: str, folder: Path, *, server: bool) -> ssl.SSLContext:
    """One end of mutual TLS with the contents of a Secret."""
    for name, text in held[secret].items():
        (folder / name).write_bytes(base64.b64decode(text))
    purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    return context


def connects(client: ssl.SSLContext, server: ssl.SSLContext) -> bool:
    """Whether each end accepts the other's certificate."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(4):
        for one in ends:
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return all(one.cipher() for one in ends)


@pytest.mark.parametrize("units", [(), POOLS])
def test_only_the_nodes_of_a_unit_can_be_servers_for_each_other(units: list[PoolKey], tmp_path: Path) -> None:
    held = certificates(replace(JOB, units=units), {}, dt.datetime.now(dt.UTC), MAKER).secrets
    client, server = (end(held, FAST, tmp_path, server=one) for one in (False, True))
    assert connects(client, server) == bool(units)


@pytest.mark.parametrize("name", ["j" * 63, "1st"])
def test_the_longest_and_the_oddest_names_fit(name: str) -> None:
    held = certificates(
        JobIdentity(name, "n" * 63, names.stateful_sets(name, [PoolKey("r" * 63, "p" * 63)])), {}, START, MAKER
    ).secrets
    assert names_of(leaf(held, names.syncer_secret(name))) == [syncer_name(name, "n" * 63)]


def revoked_as_of(time: dt.datetime) -> JobIdentity:
    """The job with the pool us-west/old revoked."""
    return replace(JOB, not_before={POOLS[1]: time})


def test_a_revoked_pool_gets_a_new_certificate_and_the_syncer_is_told() -> None:
    first, _ = at(NOON, {})
    who, soon = revoked_as_of(NOON + dt.timedelta(seconds=0.5)), NOON + dt.timedelta(seconds=2)
    held, reasons = at(soon, first, who)
    assert reasons == (f"{OLD}: was revoked",)
    assert {name for name in first if held[name] != first[name]} == {OLD, SYNCER}
    assert held[SYNCER].keys() - first[SYNCER].keys() == {REVOKED_FILE}
    # Nothing more is due, however often it is asked.
    assert at(soon + dt.timedelta(days=1), held, who) == (held, ())


def test_the_syncer_refuses_all_earlier_ones_and_not_the_new_one(tmp_path: Path) -> None:
    earlier, _ = at(START - dt.timedelta(days=40), {})
    renewed, _ = at(START + dt.timedelta(days=21), earlier)
    time = START + dt.timedelta(days=22)
    made, _ = at(time, renewed, revoked_as_of(time))
    file = tmp_path / REVOKED_FILE
    file.write_bytes(base64.b64decode(made[SYNCER][REVOKED_FILE]))
    before = read_revoked(file)
    assert set(before) == {"us-west/old"}
    for held in (earlier, renewed):
        assert leaf(held, OLD).not_valid_before_utc < before["us-west/old"]
    assert leaf(made, OLD).not_valid_before_utc >= before["us-west/old"]
    assert leaf(earlier, OLD).not_valid_after_utc > time, "the certificate before the last is still valid"


def test_a_clock_that_is_a_little_ahead_makes_one_certificate() -> None:
    who = revoked_as_of(NOON + CLOCK_SKEW - dt.timedelta(seconds=5))
    made, _ = at(NOON, at(NOON, {})[0], who)
    assert leaf(made, OLD).not_valid_before_utc <= NOON
    assert at(NOON, made, who) == (made, ())


def test_a_time_that_has_not_come_has_no_effect_until_it_has() -> None:
    later = START + dt.timedelta(hours=1)
    who = revoked_as_of(later)
    first, _ = at(START, {}, who)
    assert REVOKED_FILE not in first[SYNCER]
    assert at(START + dt.timedelta(minutes=50), first, who) == (first, ())
    made, reasons = at(later, first, who)
    assert reasons == (f"{OLD}: was revoked",)
    assert REVOKED_FILE in made[SYNCER]


def test_once_all_of_them_have_expired_the_syncer_needs_no_list() -> None:
    told = f"us-west/old {START - CLOCK_SKEW:%Y-%m-%dT%H:%M:%SZ}\n"
    assert revoked_list({POOLS[1]: START}, START + LEAF_LIFE / 2) == told
    assert revoked_list({POOLS[1]: START}, START + LEAF_LIFE) == ""


def test_every_pool_of_the_largest_job_fits_into_the_syncers_secret() -> None:
    pools = [PoolKey(f"{i:063}", f"{j:063}") for i in range(64) for j in range(64)]
    assert len(revoked_list(dict.fromkeys(pools, START), START)) < 700_000
