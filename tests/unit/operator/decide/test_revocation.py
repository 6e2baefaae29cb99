"""Revoked certificates: what the annotation says, what the syncer is told, and which certificates are replaced."""

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from diloco.wire.revocations import read_revoked
from diloco_operator import names
from diloco_operator.decide.certificates import REVOKED_FILE, JobIdentity, certificates
from diloco_operator.decide.revocation import Revoked, not_in_force, revoked, with_entry
from diloco_operator.names import PoolKey
from diloco_operator.signing import CLOCK_SKEW, LEAF_LIFE, RandomCertificateMaker

NOW = dt.datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=dt.UTC)
SOON = NOW + dt.timedelta(seconds=2)
FAST, OLD, NEW = PoolKey("us-east", "fast"), PoolKey("us-west", "old"), PoolKey("us-west", "new")
POOLS = (FAST, OLD, NEW)
JOB = JobIdentity("job", "team", names.stateful_sets("job", POOLS))
SYNCER = names.syncer_secret("job")
MAKER = RandomCertificateMaker()


def secret(pool: PoolKey) -> str:
    return names.learner_secret(JOB.pools[pool])


def leaf(held: Mapping[str, Mapping[str, str]], name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(held[name]["tls.crt"]))


def test_a_region_means_all_its_pools_and_of_several_times_the_last_counts() -> None:
    said = revoked("us-west=2026-01-01T10:00:00Z, us-west/old=2026-01-01T11:00:00Z,", POOLS, NOW)
    ten, eleven = (dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (10, 11))
    assert said == Revoked({OLD: eleven, NEW: ten})
    assert revoked("us-west/old=2026-01-01T11:00:00Z,us-west=2026-01-01T10:00:00Z", POOLS, NOW) == said
    assert revoked("", POOLS, NOW) == Revoked()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("us-west", "'us-west' is not REGION=TIME"),
        ("us-west=yesterday", "is not REGION=TIME"),
        ("us-west=2026-13-01T10:00:00Z", "is not REGION=TIME"),
        ("us-west=2026-01-01T10:00:00+02:00", "is not REGION=TIME"),
        ("us_west=2026-01-01T10:00:00Z", "is not REGION=TIME"),
        ("europe=2026-01-01T10:00:00Z", "europe is not a region or pool of spec.regions"),
        ("us-west/fast=2026-01-01T10:00:00Z", "us-west/fast is not a region or pool of spec.regions"),
        ("us-west=2026-01-01T12:06:00Z", "2026-01-01T12:06:00Z has not come yet"),
        ("x" * 100_000, "is not REGION=TIME"),
    ],
)
def test_what_cannot_be_understood_is_named_and_the_rest_counts(entry: str, told: str) -> None:
    said = revoked(f"{entry},us-east/fast=2026-01-01T10:00:00Z", POOLS, NOW)
    assert list(said.before) == [FAST]
    assert told in said.problem
    assert said.problem.startswith("metadata.annotations[diloco.dev/revoked]: ")
    assert len(said.problem) < 300


def test_the_command_adds_an_entry_that_means_everything_made_so_far() -> None:
    once = with_entry("", "us-west/old", NOW)
    assert once == "us-west/old=2026-01-01T12:00:01Z"
    more = with_entry(f"{once}, us-east=2026-01-01T10:00:00Z", "us-west/old", NOW + dt.timedelta(hours=1))
    assert more == "us-east=2026-01-01T10:00:00Z,us-west/old=2026-01-01T13:00:01Z"
    assert revoked(once, POOLS, NOW).problem == ""


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        ("us-west=2026-01-01T12:04:00Z", "12:04:00Z"),  # of an API server whose clock is ahead
        ("us-west=2026-01-01T11:00:00Z", "12:00:01Z"),
        ("us-west=2027-01-01T12:00:00Z", "12:00:01Z"),  # it would have no effect
        ("us-west=soon", "12:00:01Z"),
    ],
)
def test_revoking_again_never_revokes_less(there: str, stays: str) -> None:
    assert with_entry(there, "us-west", NOW) == f"us-west=2026-01-01T{stays}"


def test_what_the_syncer_was_not_told_is_named_and_the_rest_is_not() -> None:
    both = "us-west/old=2026-01-01T10:00:00Z,us-east=2026-01-01T10:00:00Z"
    old_only, whole = (revoked(text, POOLS, NOW).file(NOW) for text in (both.partition(",")[0], both))
    told = not_in_force(both, POOLS, NOW, old_only)
    assert told.startswith("metadata.annotations[diloco.dev/revoked]: has no effect on us-east/fast while the manifest")
    assert "us-west/old" not in told
    assert not_in_force(both, POOLS, NOW, whole) == not_in_force("", POOLS, NOW, "") == ""
    assert "is not a region or pool" in not_in_force("europe=2026-01-01T10:00:00Z", POOLS, NOW, whole)
    assert not_in_force(both, (), NOW, "") == "", "no pool has a certificate"


def test_a_revoked_pool_gets_a_new_certificate_and_the_syncer_is_told() -> None:
    first = certificates(JOB, {}, NOW, MAKER).secrets
    who = replace(JOB, revoked=revoked(with_entry("", "us-west/old", NOW), POOLS, NOW))
    made = certificates(who, first, SOON, MAKER)
    assert made.reasons == (f"{secret(OLD)}: was revoked",)
    assert {name for name in first if made.secrets[name] != first[name]} == {secret(OLD), SYNCER}
    assert made.secrets[SYNCER].keys() - first[SYNCER].keys() == {REVOKED_FILE}
    # Nothing more is due, however often it is asked.
    again = certificates(who, made.secrets, SOON + dt.timedelta(days=1), MAKER)
    assert (again.secrets, again.reasons) == (made.secrets, ())


def test_the_syncer_refuses_all_earlier_ones_and_not_the_new_one(tmp_path: Path) -> None:
    earlier = certificates(JOB, {}, NOW - dt.timedelta(days=40), MAKER).secrets
    renewed = certificates(JOB, earlier, NOW + dt.timedelta(days=21), MAKER).secrets
    at = NOW + dt.timedelta(days=22)
    said = revoked(with_entry("", "us-west", at), POOLS, at)
    made = certificates(replace(JOB, revoked=said), renewed, at, MAKER).secrets
    file = tmp_path / REVOKED_FILE
    file.write_bytes(base64.b64decode(made[SYNCER][REVOKED_FILE]))
    before = read_revoked(file)
    assert set(before) == {"us-west/new", "us-west/old"}
    for held in (earlier, renewed):
        assert leaf(held, secret(OLD)).not_valid_before_utc < before["us-west/old"]
    assert leaf(made, secret(OLD)).not_valid_before_utc >= before["us-west/old"]
    assert leaf(earlier, secret(OLD)).not_valid_after_utc > at, "the certificate before the last is still valid"


def test_a_clock_that_is_a_little_ahead_makes_one_certificate() -> None:
    first = certificates(JOB, {}, NOW, MAKER).secrets
    ahead = NOW + CLOCK_SKEW - dt.timedelta(seconds=5)
    who = replace(JOB, revoked=revoked(with_entry("", "us-west/old", ahead), POOLS, NOW))
    made = certificates(who, first, NOW, MAKER).secrets
    assert leaf(made, secret(OLD)).not_valid_before_utc <= NOW
    assert certificates(who, made, NOW, MAKER).reasons == ()


def test_once_all_of_them_have_expired_the_syncer_needs_no_list() -> None:
    said = revoked(with_entry("", "us-west/old", NOW), POOLS, NOW)
    assert (
        said.file(NOW + LEAF_LIFE) == f"us-west/old {NOW - CLOCK_SKEW + dt.timedelta(seconds=0.5):%Y-%m-%dT%H:%M:%SZ}\n"
    )
    assert said.file(NOW + LEAF_LIFE + dt.timedelta(seconds=2)) == ""


def test_every_pool_of_the_largest_job_fits_into_the_syncers_secret() -> None:
    pools = [PoolKey(f"{i:063}", f"{j:063}") for i in range(64) for j in range(64)]
    said = Revoked(dict.fromkeys(pools, NOW))
    assert len(said.file(NOW)) < 700_000
