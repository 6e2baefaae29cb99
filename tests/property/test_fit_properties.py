"""For any job and links: shares are shares, more of a resource does not make the fit worse, and remedies work."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.plan.fit.fit import FitKind, fit
from diloco.plan.fit.remedies import remedies
from diloco.plan.fit.situation import Exchange, LearnerGroup, Link, Situation
from tests.support.examples import examples

rates = st.one_of(st.just(math.inf), st.floats(1e2, 1e9))
step_times = st.floats(0.01, 10.0)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    interval = draw(st.integers(1, 100))
    exchange = Exchange(
        numels=tuple(draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=30))),
        interval=interval,
        overlap=draw(st.none() | st.integers(0, interval - 1)),
        staleness_bound_steps=draw(st.none() | st.integers(interval, 5 * interval)),
        quorum=draw(st.integers(1, 4)),
        compression=draw(st.sampled_from(["None", "BF16", "Int8", "Int4", "TopK"])),
        downlink=draw(st.sampled_from(["F32", "BF16", "Int8"])),
    )
    groups = tuple(
        LearnerGroup(
            f"g{index}",
            draw(st.integers(1, 100)),
            Link(f"l{index}", draw(rates), draw(rates), draw(st.floats(0, 2.0))),
            draw(step_times),
            draw(st.integers(1, 10_000)),
        )
        for index in range(draw(st.integers(1, 4)))
    )
    own = Link("own", draw(rates), draw(rates))
    return Situation(exchange, groups, own, draw(st.floats(0, 1.0)))


@given(situations())
def test_shares_are_between_0_and_1_and_those_not_carried_have_none(world: Situation) -> None:
    found = fit(world)
    for group in found.groups:
        assert group.carried == (group.merged_share is not None)
        assert group.merged_share is None or 0 <= group.merged_share <= 1
    assert found.kind is not FitKind.STEP_TIME_UNKNOWN
    if found.fits:
        assert all(group.carried for group in found.groups)
        assert not any(use.too_thin for use in found.links)
        assert found.overlap_needed is not None
        assert found.overlap is not None
        assert found.overlap_needed <= found.overlap


@given(situations())
@settings(max_examples=examples(40))
def test_every_remedy_makes_it_fit(world: Situation) -> None:
    for remedy in remedies(world):
        assert remedy.fit.fits
        assert str(remedy)


@given(situations(), st.floats(1.0, 100.0))
def test_faster_links_are_never_used_more(world: Situation, times: float) -> None:
    def faster(link: Link) -> Link:
        up, down = times * link.up_bytes_per_second, times * link.down_bytes_per_second
        return replace(link, up_bytes_per_second=up, down_bytes_per_second=down)

    groups = tuple(replace(group, link=faster(group.link)) for group in world.groups)
    before, after = fit(world), fit(replace(world, groups=groups, syncer=faster(world.syncer)))
    for one, other in zip(before.links, after.links, strict=True):
        assert other.up_share <= one.up_share
        assert other.down_share <= one.down_share
