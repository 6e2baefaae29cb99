"""The contents of a job's Secrets: created once, kept, renewed, repaired if damaged, rolled over in two steps."""

import base64
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping

import pytest
from cryptography import x509

from diloco.spec.syncer_name import syncer_name
from diloco_operator import names
from diloco_operator.decide.certificates import SETTLING, JobIdentity, certificates
from diloco_operator.names import PoolKey
from diloco_operator.signing import (
    AUTHORITY_LIFE,
    LEAF_LIFE,
    Authority,
    LeafNames,
    RandomCertificateMaker,
    certificate_pem,
    key_pem,
    new_leaf,
    read_authorities,
    read_key,
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
POOLS = (PoolKey("us-east", "fast"), PoolKey("us-west", "old"))
JOB = JobIdentity("job", "team", names.stateful_sets("job", POOLS))
MADE_AT_START = dataclasses.replace(JOB, created=START)
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


def signer(held: Held, secret: str = SYNCER) -> int:
    """The place in the bundle of the authority that signed a leaf: 0 is the newest."""
    return [one.subject for one in bundle(held, secret)].index(leaf(held, secret).issuer)


def test_a_new_job_gets_an_authority_and_a_certificate_for_each_who_speaks() -> None:
    held, reasons = at(START, {})
    assert list(held) == [CA, SYNCER, FAST, OLD]
    assert list(reasons) == [f"{name}: is missing" for name in held]
    assert set(held[CA]) == {"ca.crt", "ca.key"}
    assert set(held[SYNCER]) == set(held[FAST]) == {"ca.crt", "tls.crt", "tls.key"}


def test_certificates_name_whom_their_holder_may_be(first: Held) -> None:
    fixed = "job.team.syncer.diloco.internal"
    services = ["job-syncer", "job-syncer.team", "job-syncer.team.svc", "job-syncer.team.svc.cluster.local"]
    assert names_of(leaf(first, SYNCER)) == [fixed, *services, "localhost"]
    assert names_of(leaf(first, FAST)) == ["diloco://job/learner/us-east/fast"]
    assert names_of(leaf(first, OLD)) == ["diloco://job/learner/us-west/old"]


def test_an_earlier_versions_certificate_is_renewed_with_the_fixed_name(first: Held) -> None:
    earlier = LeafNames("diloco syncer", "server", dns=("job-syncer.team.svc", "localhost", "syncer.example.com"))
    (authority,) = read_authorities(base64.b64decode(first[CA]["ca.crt"]))
    made = new_leaf(Authority(authority, read_key(base64.b64decode(first[CA]["ca.key"]))), earlier, START, MAKER)
    shown = {"tls.crt": certificate_pem(made.certificate), "tls.key": key_pem(made.key)}
    old = {**first[SYNCER], **{key: base64.b64encode(value).decode() for key, value in shown.items()}}
    held, reasons = at(START, {**first, SYNCER: old})
    assert reasons == (f"{SYNCER}: is for other names",)
    assert names_of(leaf(held, SYNCER)) == names_of(leaf(first, SYNCER))
    assert (held[FAST], held[CA]) == (first[FAST], first[CA])


def test_the_authoritys_key_is_in_its_own_secret_only(first: Held) -> None:
    assert b"PRIVATE KEY" in base64.b64decode(first[CA]["ca.key"])
    keys = {data["tls.key"] for name, data in first.items() if name != CA}
    assert len(keys) == 3
    assert first[CA]["ca.key"] not in keys


@pytest.mark.parametrize("later", [dt.timedelta(0), SETTLING, LEAF_LIFE * 2 / 3 - dt.timedelta(minutes=10)])
def test_nothing_changes_while_nothing_is_due(first: Held, later: dt.timedelta) -> None:
    assert at(START + later, first) == (first, ())


def test_what_was_made_by_a_clock_that_was_ahead_is_made_anew() -> None:
    ahead, _ = at(START + dt.timedelta(days=365), {}, MADE_AT_START)
    held, reasons = at(START, ahead, MADE_AT_START)
    assert reasons[0] == f"{CA}: contains no valid authority with its key"
    assert len(reasons) == 4
    assert len(bundle(held)) == 1
    for secret in (SYNCER, FAST, OLD):
        assert leaf(held, secret).not_valid_before_utc < START
    assert at(START + SETTLING, held, MADE_AT_START) == (held, ())


def test_leaves_that_are_not_valid_yet_are_renewed_by_the_same_authority(first: Held) -> None:
    ahead, _ = at(START + dt.timedelta(days=365), first, MADE_AT_START)
    held, reasons = at(START + dt.timedelta(days=1), ahead, MADE_AT_START)
    said = "is not valid yet: the operator's clock was ahead when it was made"
    assert reasons == tuple(f"{name}: {said}" for name in (SYNCER, FAST, OLD))
    assert held[CA] == first[CA]
    assert at(START + dt.timedelta(days=2), held, MADE_AT_START) == (held, ())


def test_by_a_clock_that_is_behind_the_job_nothing_is_made_anew(first: Held) -> None:
    assert at(START - dt.timedelta(days=365), first, MADE_AT_START) == (first, ())


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


Damage = Callable[[Mapping[str, str]], Mapping[str, str] | None]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "deleted": (lambda _: None, "is missing"),
    "no base64": (lambda data: {**data, "tls.crt": "%%"}, "tls.crt is not base64"),
    "empty": (lambda data: {**data, "tls.crt": ""}, "contains no readable certificate"),
    "torn": (lambda data: {**data, "tls.crt": data["tls.crt"][:400]}, "contains no readable certificate"),
    "mistaken": (lambda data: {**data, "tls.key": data["tls.crt"]}, "contains no readable key"),
    "less": (lambda data: {key: data[key] for key in ("ca.crt", "tls.crt")}, "contains no readable key"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_leaf_alone_is_made_anew(first: Held, kind: str) -> None:
    damage, told = DAMAGES[kind]
    damaged = damage(first[FAST])
    others = {name: data for name, data in first.items() if name != FAST}
    held, reasons = at(START, others if damaged is None else {**others, FAST: damaged})
    assert reasons == (f"{FAST}: {told}",)
    assert {name: data for name, data in held.items() if name != FAST} == others


def test_a_key_that_is_not_the_certificates_is_found(first: Held) -> None:
    mixed = {**first[FAST], "tls.key": first[OLD]["tls.key"]}
    assert at(START, {**first, FAST: mixed})[1] == (f"{FAST}: contains a key that does not match the certificate",)


def test_a_certificate_for_other_names_is_replaced(first: Held) -> None:
    held, reasons = at(START, {**first, FAST: first[OLD]})
    assert reasons == (f"{FAST}: is for other names",)
    assert names_of(leaf(held, FAST)) == ["diloco://job/learner/us-east/fast"]


def test_a_certificate_of_another_jobs_authority_is_replaced(first: Held) -> None:
    other = at(START, {})[0]
    held, reasons = at(START, {**first, FAST: other[FAST]})
    assert reasons == (f"{FAST}: is signed by an authority that is not trusted",)
    assert signer(held, FAST) == 0


def test_a_bundle_edited_by_hand_is_put_right_and_the_certificate_kept(first: Held) -> None:
    held, reasons = at(START, {**first, FAST: {**first[FAST], "ca.crt": ""}})
    assert (held, reasons) == (first, ())


DUE = START + AUTHORITY_LIFE * 2 / 3


def aged() -> tuple[Held, dt.datetime]:
    """A job that has run since ``START``, just when its authority is due; its leafs are a month old."""
    held, _ = at(DUE - dt.timedelta(days=30), at(START, {})[0])
    return held, DUE


def test_a_new_authority_is_handed_out_first_and_signs_nothing_yet() -> None:
    before, now = aged()
    during, reasons = at(now, before)
    assert [reason.partition(":")[0] for reason in reasons] == [CA]
    for secret in (SYNCER, FAST, OLD):
        assert bundle(during, secret)[1:] == bundle(before, secret)
        assert during[secret]["tls.crt"] == before[secret]["tls.crt"]
    assert at(now + SETTLING - dt.timedelta(seconds=1), during) == (during, ())


def test_a_leaf_due_during_the_change_is_signed_by_the_old_authority() -> None:
    before, now = aged()
    during, _ = at(now, before)
    lost = {name: data for name, data in during.items() if name != FAST}
    assert signer(at(now + SETTLING / 2, lost)[0], FAST) == 1


def test_after_settling_the_new_authority_signs_all_and_the_old_key_goes() -> None:
    before, now = aged()
    during, _ = at(now, before)
    after, reasons = at(now + SETTLING, during)
    replaced = "is signed by an authority that has been replaced"
    assert list(reasons) == [f"{secret}: {replaced}" for secret in (SYNCER, FAST, OLD)]
    assert [signer(after, secret) for secret in (SYNCER, FAST, OLD)] == [0, 0, 0]
    assert bundle(after) == bundle(during)
    assert base64.b64decode(during[CA]["ca.key"]).count(b"BEGIN") == 2
    assert base64.b64decode(after[CA]["ca.key"]).count(b"BEGIN") == 1
    assert at(now + SETTLING, after) == (after, ())


def test_an_authority_leaves_the_bundle_when_it_has_expired() -> None:
    before, now = aged()
    after, _ = at(now + SETTLING, at(now, before)[0])
    end = START + AUTHORITY_LIFE + dt.timedelta(seconds=1)
    assert len(bundle(at(end - dt.timedelta(days=1), after)[0])) == 2
    assert bundle(at(end, after)[0]) == bundle(after)[:1]


def test_no_certificate_outlives_its_authority(first: Held) -> None:
    # The operator was away, so the old authority is the only one that every pod trusts.
    now = START + AUTHORITY_LIFE - dt.timedelta(days=10)
    held, _ = at(now, first)
    assert signer(held) == 1
    assert leaf(held).not_valid_after_utc == bundle(held)[1].not_valid_after_utc


LOSSES: dict[str, Callable[[Held], Held]] = {
    "the Secret": lambda held: {name: data for name, data in held.items() if name != CA},
    "its key": lambda held: {**held, CA: {**held[CA], "ca.key": "eA=="}},
    "its certificate": lambda held: {**held, CA: {**held[CA], "ca.crt": "eA=="}},
    "all of its data": lambda held: {**held, CA: {}},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_authority_cuts_nobody_off(first: Held, loss: str) -> None:
    during, reasons = at(START, LOSSES[loss](first))
    assert [reason.partition(":")[0] for reason in reasons] == [CA]
    for secret in (SYNCER, FAST, OLD):
        assert during[secret]["tls.crt"] == first[secret]["tls.crt"]
        assert bundle(first)[0] in bundle(during, secret)
    assert at(START + SETTLING / 2, during) == (during, ())
    after, _ = at(START + SETTLING, during)
    assert [bundle(after, one)[0].subject == leaf(after, one).issuer for one in (SYNCER, FAST, OLD)] == [True] * 3


def test_everything_lost_is_everything_new(first: Held) -> None:
    held, _ = at(START + AUTHORITY_LIFE * 2, first)
    assert len(bundle(held)) == 1
    assert signer(held) == 0
    assert leaf(held).not_valid_after_utc == START + AUTHORITY_LIFE * 2 + LEAF_LIFE


def test_a_clock_that_was_set_back_changes_nothing(first: Held) -> None:
    assert at(START - dt.timedelta(hours=2), first) == (first, ())


@pytest.mark.parametrize("name", ["j" * 63, "1st"])
def test_the_longest_and_the_oddest_names_fit(name: str) -> None:
    held = certificates(
        JobIdentity(name, "n" * 63, names.stateful_sets(name, [PoolKey("r" * 63, "p" * 63)])), {}, START, MAKER
    ).secrets
    fixed, service, *_ = names_of(leaf(held, names.syncer_secret(name)))
    assert (fixed, service) == (syncer_name(name, "n" * 63), names.syncer(name))
