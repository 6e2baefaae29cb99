"""Which members are left out of a merge for their size, which are clipped, and which are not."""

import math
from collections.abc import Sequence

import pytest
import torch

from diloco.core.merge.fragment_merge import Contribution, MergeError
from diloco.core.merge.member_sizes import CLIP_RATIO, LARGEST_RATIO, NO_PAST, MeasuredMember, UsualSize
from diloco.core.merge.outliers import LEAST_PAST, LEAST_STANDARD, OWN_RATIO, compare, compare_alone
from diloco.spec.sync import MergeName
from tests.support.fragment_merge import METHODS, Rule, contributions_of, fragment_of, merge, merge_into_zero, random
from tests.support.merge_members import TENSORS, Merges, member, parameters, used_to


def left_out(*members: MeasuredMember, usual: UsualSize = NO_PAST) -> list[str]:
    return sorted(compare(members, TENSORS, usual, parameters).left_out)


def clips(*members: MeasuredMember, usual: UsualSize = NO_PAST) -> dict[str, tuple[float, ...]]:
    return dict(compare(members, TENSORS, usual, parameters).clips)


def test_the_bound_acts_beyond_it_and_not_at_it() -> None:
    others = [member("a", 1, 1), member("b", 1, 1)]
    assert left_out(*others, member("c", LARGEST_RATIO, LARGEST_RATIO)) == []
    assert left_out(*others, member("c", 1.01 * LARGEST_RATIO, 1)) == ["c"]
    found = compare([*others, member("c", 1, 40)], TENSORS, NO_PAST, parameters)
    assert found.left_out == {"c": "it is 40 times as large in small as the others are"}
    assert (LARGEST_RATIO, CLIP_RATIO, OWN_RATIO, LEAST_PAST) == (16.0, 2.0, 4.0, 4)


def test_each_tensor_is_clipped_at_twice_the_median() -> None:
    others = [member("a", 1, 1), member("b", 1.5, 0.5)]
    assert clips(*others, member("c", 2, 2)) == {}
    assert clips(*others, member("c", 3, 4)) == {"c": (1.0, 0.5)}
    assert clips(*others, member("c", 12, 0.1)) == {"c": (0.25, 1.0)}


@pytest.mark.parametrize(
    ("ratio", "growth", "clipped"), [(3, 0.5, False), (3, 0.8, False), (4, 1.0, False), (9, 1.0, True)]
)
def test_more_steps_than_the_others_are_no_reason_to_clip(ratio: int, growth: float, *, clipped: bool) -> None:
    size = ratio**growth / ratio**0.5  # its norm grows with this power of its steps
    faster = member("c", 0.99 * size, 0.99 * size, steps=8 * ratio)
    assert bool(clips(member("a", 1, 1, steps=8), member("b", 1, 1, steps=8), faster)) is clipped


@pytest.mark.parametrize("tiny", [0.0, 1e-9])
def test_one_that_brings_next_to_nothing_puts_nobody_out(tiny: float) -> None:
    members = member("a", 1, 1), member("b", 1, 1), member("c", tiny, tiny)
    assert left_out(*members) == []
    assert clips(*members) == {}


@pytest.mark.parametrize("pairs", [1, 2, 4])
@pytest.mark.parametrize("size", [1 / 70, 1 / 20, 20.0, 1000.0])
def test_half_of_the_members_put_nobody_of_the_other_half_out(pairs: int, size: float) -> None:
    honest, false = [f"h{one}" for one in range(pairs)], [f"f{one}" for one in range(pairs)]
    merges = Merges()
    for _ in range(5):
        assert merges.together(**dict.fromkeys(honest + false, 1.0)) == []
    for _ in range(60):
        out = merges.together(**dict.fromkeys(honest, 1.0), **dict.fromkeys(false, size))
        assert out == (sorted(false) if size > LARGEST_RATIO else [])
        assert not merges.clipped & {*honest}


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_without_a_past_half_of_the_members_clip_the_others_only(pairs: int) -> None:
    sizes = {f"h{one}": 1.0 for one in range(pairs)} | {f"f{one}": 1 / 20 for one in range(pairs)}
    merges = Merges()
    assert [merges.together(**sizes) for _ in range(60)] == [[]] * 60
    assert merges.usual == NO_PAST


def test_slowly_shrinking_moves_no_standard_beside_as_many_honest_ones() -> None:
    merges, size = Merges(), 1.0
    for _ in range(200):
        assert merges.together(a=1.0, b=1.0, c=size, d=size) == []
        assert not merges.clipped
        size = max(0.01, 0.95 * size)


def test_two_of_four_that_are_huge_do_not_cover_each_other() -> None:
    assert left_out(member("a", 1, 1), member("b", 1, 1), member("c", 1e9, 1), member("d", 1, 1e9)) == ["c", "d"]


def test_of_two_without_a_past_one_that_dwarfs_the_parameters_is_out() -> None:
    small = member("a", 0.001, 0.001)
    assert left_out(small, member("b", 0.99 * LARGEST_RATIO, 1)) == []
    assert left_out(small, member("b", 1.01 * LARGEST_RATIO, 1)) == ["b"]
    assert clips(small, member("b", 1, 1)) == {"b": pytest.approx((0.002, 0.002))}


def test_two_others_in_their_warm_up_do_not_exclude_one_of_the_usual_size() -> None:
    others = [member("a", 1, 1), member("b", 1, 1)]
    assert left_out(*others, member("c", 100, 100), usual=used_to(100 / OWN_RATIO)) == []
    assert left_out(*others, member("c", 100, 100), usual=used_to(99 / OWN_RATIO)) == ["c"]


def test_beside_one_other_in_its_warm_up_the_usual_size_is_not_clipped() -> None:
    assert clips(member("a", 0.01, 0.01), member("b", 1, 1), usual=used_to(1.0)) == {}
    assert clips(member("a", 0.01, 0.01), member("b", 4, 4), usual=used_to(1.0)) == {"b": (0.5, 0.5)}


@pytest.mark.parametrize("others", ["a", "ab", "abd", "abde"])
def test_growing_slowly_raises_no_bound(others: str) -> None:
    merges, size, moved = Merges(), 1.0, []
    merges.together(**dict.fromkeys(others, 1.0), c=1.0)
    while size < 1e6:
        moved.append(size * merges.together_with(dict.fromkeys(others, 1.0), "c", size))
        size *= 1.1
    assert max(moved) <= CLIP_RATIO * 1.1


@pytest.mark.parametrize("others", ["a", "ab", "abd"])
def test_what_a_learner_did_alone_moves_nothing_beside_others(others: str) -> None:
    merges = Merges()
    merges.together(**dict.fromkeys(others, 1.0), c=1.0)
    for size in [1.0] * LEAST_PAST + [1000.0] * 12:  # as large as the others, and then alone with growing sizes
        merges.alone(size)
    assert merges.usual.size > 100
    for size in (1000.0, 100.0, 10.0):
        assert size * merges.together_with(dict.fromkeys(others, 1.0), "c", size) <= 1.001 * CLIP_RATIO


def test_who_was_alone_while_all_sizes_fell_is_merged_beside_others() -> None:
    merges = Merges()
    assert [merges.together(a=1.0, b=1.0, c=1.0) for _ in range(5)] == [[]] * 5
    size = 1.0
    for _ in range(60):
        merges.alone(size)
        size *= 0.9
    assert [merges.together(a=size, b=size, c=size) for _ in range(5)] == [[]] * 5
    assert not merges.clipped


def test_one_that_was_always_alone_is_merged_once_the_others_are_warm() -> None:
    merges = Merges()
    for _ in range(30):
        merges.alone(1.0)
    outcomes = [merges.together(a=step / 40, b=step / 40, c=1.0) for step in range(1, 41)]
    assert outcomes == [["c"]] * 2 + [[]] * 38


def test_a_tensor_that_one_learner_trains_alone_is_no_outlier() -> None:
    for others in (0.0, 0.002):
        members = member("a", 1, others), member("b", 1, others), member("c", 1, 1.5)
        assert left_out(*members) == []
        assert clips(*members) == {}
    assert left_out(member("a", 1, 0), member("b", 1, 0), member("c", 1, 20)) == ["c"]
    assert clips(member("a", 1, 0), member("b", 1, 0), member("c", 1, 4)) == {"c": pytest.approx((1.0, 0.5), rel=0.03)}


@pytest.mark.parametrize("others", ["a", "ab", "abd"])
@pytest.mark.parametrize(
    ("past", "size", "standard"), [(None, 1.0, 1.0), (0.5, 1.0, 1.0), (3.0, 1.0, 3.0), (None, 0.0, LEAST_STANDARD)]
)
def test_beside_zeros_a_member_is_compared_with_past_and_parameters(
    others: str, past: float | None, size: float, standard: float
) -> None:
    usual = NO_PAST if past is None else UsualSize(1, past)
    zeros = [member(other, 0, 0) for other in others]
    for ratio, out in ((0.99, []), (1.01, ["c"]), (1e29, ["c"])):
        alone = member("c", *[ratio * LARGEST_RATIO * standard] * 2)
        assert sorted(compare([*zeros, alone], TENSORS, usual, lambda: size).left_out) == out


def test_the_parameters_are_measured_only_where_nothing_else_is_a_measure() -> None:
    def never() -> float:
        pytest.fail("measured")

    assert not compare([member("a", 1, 0), member("b", 1, 0), member("c", 1, 2)], TENSORS, NO_PAST, never).left_out
    assert not compare([member("a", 1, 0), member("b", 15, 2)], TENSORS, NO_PAST, never).left_out
    assert not compare_alone(member("a", 1, 1), 104, UsualSize(LEAST_PAST, 1.0), never).left_out


@pytest.mark.parametrize(
    ("usual", "standard"),
    [
        (NO_PAST, 2.0),
        (UsualSize(LEAST_PAST - 1, 1.0), 2.0),
        (UsualSize(LEAST_PAST - 1, 3.0), 3.0),
        (UsualSize(LEAST_PAST, 1.0), 1.0),
        (UsualSize(LEAST_PAST, 0.0), 2.0),
        (UsualSize(LEAST_PAST, 1.0, (5.0, 5.0, 4.0)), 4.0),
    ],
)
def test_one_that_is_alone_is_compared_with_parameters_and_then_the_past(usual: UsualSize, standard: float) -> None:
    for ratio, out in ((0.99, False), (1.01, True), (1e29, True)):
        size = ratio * LARGEST_RATIO * standard
        found = compare_alone(MeasuredMember("a", 4, (size**2 * 4 * 104,)), 104, usual, lambda: 2.0)
        assert list(found.left_out) == ["a"] * out
        kept = usual.after_one(min(size, LARGEST_RATIO * standard))
        assert found.usual.size == pytest.approx(kept.size)


def test_a_size_that_lasts_becomes_the_usual_one() -> None:
    merges = Merges()
    assert [merges.alone(size) for size in [1.0] * 5 + [1000.0] * 8] == [True] * 5 + [False] * 3 + [True] * 5


def noise(seed: int, numel: int = 1000) -> torch.Tensor:
    return 0.01 * torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def spoilt(how: str) -> torch.Tensor:
    values = noise(9)
    match how:
        case "one element of 1,000":
            values[3] = 1000.0
        case "one element of 1e20":
            values[3] = 1e20
        case "1e31":
            values.fill_(1e31)
        case "NaN":
            values[3] = math.nan
        case "infinity":
            values[3] = math.inf
    return values


def raw(deltas: dict[str, torch.Tensor], weights: Sequence[float] = ()) -> list[Contribution]:
    """A payload as a hostile learner may send it, because encoders refuse values that are not finite."""
    shares = weights or [1 / len(deltas)] * len(deltas)
    return [
        Contribution(name, share, delta.view(torch.uint8))
        for (name, delta), share in zip(deltas.items(), shares, strict=True)
    ]


WAYS = ["one element of 1,000", "one element of 1e20", "1e31", "NaN", "infinity"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("embedding", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("honest", [1, 2, 3])
def test_a_bad_member_is_left_out_and_the_rest_merge_as_if_it_were_absent(
    honest: int, method: MergeName, embedding: bool, how: str
) -> None:
    fragment = fragment_of((1000,), embeddings=[0] if embedding else [])
    deltas = {f"h{index}": noise(index) for index in range(honest)}
    rule = Rule(method, bounded=True)
    expected, alone = merge_into_zero(fragment, contributions_of(deltas), rule)
    weights = [0.5 / honest] * honest + [0.5]
    merged, statistics = merge_into_zero(fragment, raw({**deltas, "liar": spoilt(how)}, weights), rule)
    assert list(statistics.verdict.left_out) == ["liar"]
    assert alone.verdict.left_out == {}
    torch.testing.assert_close(merged, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("honest", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [0.1, 1e29 / 1000**0.5, 1e3])
def test_beside_zeros_a_member_is_merged_unless_it_dwarfs_the_parameters(
    honest: int, method: MergeName, size: float
) -> None:
    fragment, trained = fragment_of((1000,)), noise(7)
    deltas = {f"h{index}": torch.zeros(1000) for index in range(honest)} | {"expert": size * 100 * noise(9)}
    contributions, rule = contributions_of(deltas), Rule(method, bounded=True)
    if honest == 0 and size > 1:
        with pytest.raises(MergeError, match=r"the outer gradient of expert: it is .* as large as its parameters"):
            merge(fragment, contributions, rule, parameters=trained)
        return
    made, statistics = merge(fragment, contributions, rule, parameters=trained)
    assert list(statistics.verdict.left_out) == ["expert"] * (size > 1)
    assert torch.equal(made.parameters, trained) == (size > 1)


def test_a_lone_member_beyond_the_usual_size_leaves_the_fragment_unchanged() -> None:
    contributions, usual = contributions_of({"a": noise(0)}), UsualSize(LEAST_PAST, 1e-5)
    with pytest.raises(MergeError, match=r"of a: it is .* as outer gradients of this fragment usually"):
        merge_into_zero(fragment_of((1000,)), contributions, Rule(bounded=True, usual=usual))
    merge_into_zero(fragment_of((1000,)), contributions, Rule())


def test_with_top_k_a_fragment_is_compared_as_a_whole() -> None:
    fragment, small = fragment_of((60, 4096), (50,), (4096,)), slice(60 * 4096, 60 * 4096 + 50)
    deltas = {name: random(fragment.numel, seed=seed) for seed, name in enumerate("abc")}
    deltas["a"][small] *= 12.0  # so all of the small tensor is sent
    rule = Rule("Mean", "TopK", bounded=True)
    honest, statistics = merge_into_zero(fragment, contributions_of(deltas, codec="TopK"), rule)
    assert (statistics.verdict.clips, statistics.verdict.left_out) == ({}, {})
    assert honest[small].count_nonzero() > 40
    dense = merge_into_zero(fragment, contributions_of(deltas), Rule("Mean", bounded=True))[1]
    assert list(dense.verdict.clips) == ["a"]

    deltas["a"] *= 4.0
    clipped = merge_into_zero(fragment, contributions_of(deltas, codec="TopK"), rule)[1].verdict.clips
    assert list(clipped) == ["a"]
    assert clipped["a"] == pytest.approx([clipped["a"][0]] * 3)
    deltas["a"] *= 20.0
    verdict = merge_into_zero(fragment, contributions_of(deltas, codec="TopK"), rule)[1].verdict
    assert "times as large in fragment 0 as the others are" in verdict.left_out["a"]
