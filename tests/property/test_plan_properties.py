"""For any job and links: more of a resource is never used more, and changes that arithmetic finds make bytes fit."""

import math
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from diloco.plan.changes import LONGEST_INTERVAL, encodings, interval_for, times_too_much
from diloco.plan.links import link_uses
from diloco.plan.situation import Exchange, LearnerGroup, Link, Situation
from diloco.plan.verdict import FitKind, judge

rates = st.one_of(st.just(math.inf), st.floats(1e2, 1e9))


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
            draw(st.floats(0.01, 10.0)),
            draw(st.integers(1, 10_000)),
        )
        for index in range(draw(st.integers(1, 4)))
    )
    own = Link("own", draw(rates), draw(rates))
    return Situation(exchange, groups, own, draw(st.floats(0, 1.0)))


@given(situations(), st.floats(1.0, 100.0))
def test_faster_links_are_never_used_more(world: Situation, times: float) -> None:
    def faster(link: Link) -> Link:
        up, down = times * link.up_bytes_per_second, times * link.down_bytes_per_second
        return replace(link, up_bytes_per_second=up, down_bytes_per_second=down)

    groups = tuple(replace(group, link=faster(group.link)) for group in world.groups)
    after = replace(world, groups=groups, syncer=faster(world.syncer))
    for one, other in zip(link_uses(world), link_uses(after), strict=True):
        assert other.up_share <= one.up_share
        assert other.down_share <= one.down_share


@given(situations())
def test_bytes_fit_with_the_interval_or_encodings_that_arithmetic_finds(world: Situation) -> None:
    too_much = (FitKind.LINK_TOO_THIN, FitKind.MERGES_TOO_SLOW)
    assert (judge(world, None).kind in too_much) == (times_too_much(world) > 1)
    for changes in encodings(world):
        values = {change.field.removeprefix("sync."): str(change.value) for change in changes}
        assert judge(replace(world, exchange=replace(world.exchange, **values)), None).fits  # type: ignore[arg-type]  # texts
    assume(interval_for(world) <= LONGEST_INTERVAL)
    assert judge(replace(world, exchange=replace(world.exchange, interval=interval_for(world))), None).fits
