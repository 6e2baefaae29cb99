from hypothesis import given
from hypothesis import strategies as st

from diloco_operator.cluster_state import ClusterState
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.registry import claims_of
from diloco_operator.clusters.slots import MOST_CLUSTERS, Claim, with_slots

CREATED = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
NAMED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 80), st.booleans(), st.sampled_from(CREATED)))
Jobs = list[tuple[str, int, bool, str]]


def named(namespace: str, count: int, *, new: bool = True, created: str = CREATED[1]) -> dict[ClusterKey, Claim]:
    return {ClusterKey(namespace, f"far-{number:03d}-{new}-{created}"): Claim(new, created) for number in range(count)}


def all_of(jobs: Jobs) -> dict[ClusterKey, Claim]:
    return {
        key: claim
        for namespace, count, new, created in jobs
        for key, claim in named(namespace, count, new=new, created=created).items()
    }


def held(allotted: frozenset[ClusterKey], namespace: str) -> int:
    return sum(key.namespace == namespace for key in allotted)


def test_64_regions_fit_and_no_namespace_takes_everything() -> None:
    assert held(with_slots(named("a", 64)), "a") == 64
    assert held(with_slots(named("a", 1000) | named("b", 20)), "b") == 20


@given(NAMED)
def test_there_are_never_more_than_there_is_room_for(jobs: Jobs) -> None:
    allotted = with_slots(all_of(jobs))
    assert allotted <= all_of(jobs).keys()
    assert len(allotted) <= MOST_CLUSTERS
    assert {key.namespace for key in allotted} == {job[0] for job in jobs}


@given(NAMED, NAMED)
def test_what_is_followed_keeps_its_slot_whatever_else_is_named(jobs: Jobs, later: Jobs) -> None:
    followed = with_slots(all_of(jobs))
    said = {key: all_of(jobs)[key]._replace(new=False) for key in followed}
    waiting = {key: claim for key, claim in all_of(later + jobs).items() if claim.new}
    assert followed <= with_slots(waiting | said, followed)


@given(NAMED)
def test_after_a_restart_what_was_in_use_comes_before_what_was_not(jobs: Jobs) -> None:
    claims = all_of(jobs)
    in_use = {key: claim for key, claim in claims.items() if not claim.new}
    # Jobs are heard of in any order: those of which others were heard first have slots already.
    first = with_slots({key: claim for key, claim in claims.items() if claim.new})
    assert with_slots(in_use) <= with_slots(claims, first)


def test_the_older_job_comes_first() -> None:
    old, young = named("a", 90, created=CREATED[0]), named("b", 90)
    assert held(with_slots(old | young), "a") > held(with_slots(old | young), "b") > 0


def test_a_slot_is_known_from_the_jobs_status_after_a_restart() -> None:
    region = {"cluster": {"kubeconfigSecretRef": {"name": "far", "key": "west"}}}
    job = {"metadata": {"namespace": "a", "name": "job", "creationTimestamp": "2026"}, "spec": {"regions": [region]}}
    key = ClusterKey("a", "far", "west")

    def new(**region: str) -> bool:
        return claims_of({**job, "status": {"regions": [region]}})[key].new

    assert claims_of(job)[key] == Claim(new=True, created="2026")
    assert not new(cluster="far/west")
    assert not new(cluster="far/west", reason=ClusterState.UNREACHABLE.value)
    assert new(cluster="far/west", reason=ClusterState.TOO_MANY.value)
    assert new(cluster="far/west", reason=ClusterState.KUBECONFIG_UNUSABLE.value)
    assert new(cluster="far")
