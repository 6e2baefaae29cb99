import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco_operator import names
from diloco_operator.names import PoolKey

SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, the stricter of the two
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
# Few letters, so that different parts often make the same text.
SHORT_LABELS = st.text("a-", min_size=1, max_size=5).filter(lambda text: text[0] == text[-1] == "a")
POOLS = st.builds(PoolKey, LABELS, LABELS)
CLOSE_POOLS = st.builds(PoolKey, SHORT_LABELS, SHORT_LABELS)


def all_names(job: str, pool: PoolKey) -> list[str]:
    of_job = (
        names.learners,
        names.syncer,
        names.exposed_syncer,
        names.config_map,
        names.authority_secret,
        names.syncer_secret,
    )
    return [
        *(name(job) for name in of_job),
        names.stateful_set(job, pool),
        names.learner_secret(names.stateful_set(job, pool)),
    ]


@given(LABELS, POOLS)
def test_every_name_is_one_that_a_service_may_have(job: str, pool: PoolKey) -> None:
    for name in all_names(job, pool):
        assert SERVICE_NAME.fullmatch(name)
        assert len(name) <= 63


@given(LABELS, POOLS)
def test_a_stateful_set_leaves_room_for_its_pods_revision_and_index(job: str, pool: PoolKey) -> None:
    name = names.stateful_set(job, pool)
    assert len(f"{name}-0123456789") <= 63
    assert len(f"{name}-9999") <= 63


@given(st.sampled_from(["job", "a" * 63, "1st"]), st.sets(st.one_of(CLOSE_POOLS, POOLS), min_size=2, max_size=8))
def test_no_two_pools_of_a_job_share_a_name(job: str, pools: set[PoolKey]) -> None:
    assert len({names.stateful_set(job, pool) for pool in pools}) == len(pools)
    secrets = {names.learner_secret(names.stateful_set(job, pool)) for pool in pools}
    secrets |= {names.authority_secret(job), names.syncer_secret(job)}
    assert len(secrets) == len(pools) + 2


@given(st.sets(st.tuples(st.one_of(SHORT_LABELS, LABELS), st.one_of(CLOSE_POOLS, POOLS)), min_size=2, max_size=8))
def test_no_two_jobs_share_a_stateful_set_or_a_secret(all_pools: set[tuple[str, PoolKey]]) -> None:
    sets = {names.stateful_set(job, pool) for job, pool in all_pools}
    assert len(sets) == len(all_pools)
    jobs = {job for job, _ in all_pools} | {name for name in sets if len(name) <= 63}
    of_syncers = {names.syncer_secret(job) for job in jobs}
    assert of_syncers.isdisjoint(names.learner_secret(name) for name in sets)


@given(st.sets(LABELS, min_size=2, max_size=8))
def test_no_two_jobs_share_a_syncer(jobs: set[str]) -> None:
    assert len({names.syncer(job) for job in jobs}) == len(jobs)


def test_no_pool_shares_a_network_policy_with_another_job() -> None:
    of_pools = {names.unit_policy(names.stateful_set("a", PoolKey("b", pool))) for pool in ("learners", "syncer")}
    assert of_pools.isdisjoint({names.learners("a--b"), names.syncer("a--b")})
    assert len(of_pools) == 2


def test_ordinary_names_are_plain() -> None:
    pool = PoolKey("us-east", "fast")
    assert all_names("two-regions", pool) == [
        "two-regions-learners",
        "two-regions-syncer",
        "two-regions-syncer-exposed",
        "two-regions-job",
        "two-regions-ca",
        "two-regions-syncer-tls",
        "two-regions--us-east-fast",
        "two-regions--us-east-fast-tls",
    ]
    assert names.syncer_host("two-regions", "team") == "two-regions-syncer.team.svc"


@pytest.mark.parametrize(
    ("job", "pool", "expected"),
    [
        ("job", PoolKey("a", "b-c"), r"job--a-b-c-[0-9a-f]{8}"),
        ("job", PoolKey("a", "deadbeef"), r"job--a-deadbeef-[0-9a-f]{8}"),
        ("job", PoolKey("a", "syncer"), r"job--a-syncer-[0-9a-f]{8}"),
        ("a--job", PoolKey("a", "b"), r"a--job--a-b-[0-9a-f]{8}"),
        ("ab", PoolKey("a", "b"), r"ab--a-b-[0-9a-f]{8}"),
        ("1st", PoolKey("a", "b"), r"job-1st--a-b-[0-9a-f]{8}"),
        ("j" * 40, PoolKey("a", "bcdefghijk"), r"j{40}--a-[0-9a-f]{8}"),
    ],
)
def test_what_is_unclear_or_too_long_ends_in_a_digest(job: str, pool: PoolKey, expected: str) -> None:
    assert re.fullmatch(expected, names.stateful_set(job, pool))


def test_names_of_running_jobs_stay_what_they_are() -> None:
    # A name that changed with a release would leave the old object behind and start a second one.
    assert names.stateful_set("job", PoolKey("a", "b-c")) == "job--a-b-c-2baa5533"
    assert names.syncer("1st") == "job-1st-syncer-aa39c2ef"
    assert names.learners("a" * 63) == f"{'a' * 54}-61ec52cd"
