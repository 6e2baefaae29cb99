"""What the manifest says about regions' links."""

import pytest

from diloco.spec.placement import Region
from diloco.syncer.peers.link_terms import LinkTerms, limits_of, terms_of
from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.server.bandwidth import LoadLimit

POOLS = [{"name": "p", "learners": 2}]
NEAR = Region.model_validate({"name": "near", "pools": POOLS})
FAR = Region.model_validate({"name": "far", "connections": 32, "bandwidth": "80Mbit/s", "pools": POOLS})
BOTH = {"near": NEAR, "far": FAR}


@pytest.mark.parametrize(
    ("learner", "terms"),
    [
        ("near/p/0", LinkTerms(DEFAULT_CONNECTIONS, 0.0)),
        ("far/p/1", LinkTerms(32, 10e6)),
        ("unknown/p/0", LinkTerms()),
    ],
)
def test_a_learner_has_its_regions_terms(learner: str, terms: LinkTerms) -> None:
    assert terms_of(BOTH)(learner) == terms


def test_a_region_that_is_added_later_has_its_terms() -> None:
    regions = {"near": NEAR}
    terms, limit_of = terms_of(regions), limits_of(regions)
    assert (terms("far/p/0"), limit_of("far/p/0")) == (LinkTerms(), None)
    regions["far"] = FAR
    assert terms("far/p/0") == LinkTerms(32, 10e6)
    assert limit_of("far/p/0") is not None


def test_a_regions_learners_share_one_limit_others_have_none() -> None:
    limit_of = limits_of(BOTH)
    first = limit_of("far/p/0")
    assert first is not None
    assert first is limit_of("far/p/1")
    assert first.bytes_per_second == 10e6
    assert limit_of("near/p/0") is None


def test_whoever_loads_shares_the_limit_and_goes_behind_the_others() -> None:
    limit_of = limits_of(BOTH, lambda learner: learner == "far/p/1")
    assert not isinstance(limit_of("far/p/0"), LoadLimit)
    behind = limit_of("far/p/1")
    assert isinstance(behind, LoadLimit)
    assert behind.bytes_per_second == 10e6
    assert behind._limit is limit_of("far/p/0")
    assert limits_of({"near": NEAR}, lambda _: True)("near/p/0") is None
