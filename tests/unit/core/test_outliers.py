"""Which members are left out of a merge for their size, and which are not."""

import math
from collections.abc import Sequence

import pytest
import torch

from diloco.core.merge import Contribution, MergeError
from diloco.core.outliers import (
    LARGEST_NORM,
    LARGEST_RATIO,
    LEAST_PAST,
    OWN_RATIO,
    MeasuredMember,
    UsualSize,
    UsualSizes,
    Verdict,
    compare,
    compare_alone,
)
from tests.support.fragment_merge import Rule, contributions_of, fragment_of, merge_into_zero

NUMELS = (100, 4)
TENSORS = [("large", 100), ("small", 4)]


def member(learner: str, *sizes: float, steps: int = 1, usual: UsualSize | None = None) -> MeasuredMember:
    """A member whose elements are as large as ``sizes``, by tensor, after one step."""
    squares = tuple(size**2 * numel * steps for size, numel in zip(sizes, NUMELS, strict=True))
    return MeasuredMember(learner, steps, squares, usual)


def used_to(size: float) -> UsualSize:
    """The usual size of a member that was merged once with others."""
    return UsualSize(size, 1, size)


def grown_alone(learner: str, *, apart: bool = True) -> UsualSizes:
    """The usual size of a learner that was as large as the others, and then alone with growing sizes."""
    usual = UsualSizes(apart=apart)
    for size in [1.0] * LEAST_PAST + [1000.0] * 12:
        usual.remember(0, compare_alone(member(learner, size, size, usual=usual.of(learner, 0)), sum(NUMELS)))
    return usual


def left_out(*members: MeasuredMember) -> list[str]:
    return sorted(compare(members, TENSORS).left_out)


def test_the_bound_acts_beyond_it_and_not_at_it() -> None:
    others = [member("a", 1, 1), member("b", 1, 1)]
    assert left_out(*others, member("c", LARGEST_RATIO, LARGEST_RATIO)) == []
    assert left_out(*others, member("c", 1.01 * LARGEST_RATIO, 1)) == ["c"]
    found = compare([*others, member("c", 1, 40)], TENSORS)
    assert found.left_out == {"c": "it is 40 times as large in small as the others are"}


def test_the_bound_is_sixteen_times_the_others_and_a_past_is_four_merges() -> None:
    assert (LARGEST_RATIO, LEAST_PAST) == (16.0, 4)
    others = [member("a", 2, 2), member("b", 2, 2)]
    found = compare([*others, member("c", 2, 66)], TENSORS)
    assert found.left_out == {"c": "it is 33 times as large in small as the others are"}
    assert left_out(*others, member("c", 2, 31)) == []


def test_a_size_is_the_root_mean_square_over_the_root_of_the_steps() -> None:
    one = MeasuredMember("a", 4, (400.0, 64.0), None)
    assert (one.size(0, 100), one.size(1, 4)) == (1.0, 2.0)
    assert one.whole_size(116) == 1.0
    assert MeasuredMember("a", 0, (400.0,), None).size(0, 100) == 2.0


def test_a_usual_size_counts_its_merges() -> None:
    usual = UsualSizes()
    usual.remember(0, Verdict({}, {"a": 1.0}))
    assert usual.of("a", 0) == UsualSize(1.0, 1)
    usual.remember(0, Verdict({}, {"a": 6.0}))
    found = usual.of("a", 0)
    assert found is not None
    assert found.size == pytest.approx(2.0)
    assert found.merges == 2


def test_only_sizes_beside_others_excuse_and_those_alone_lower_the_excuse() -> None:
    usual = UsualSizes()
    excuses = []
    for size, company in ((9.0, False), (1.0, True), (6.0, True), (1000.0, False), (1.0, False)):
        usual.remember(0, Verdict({}, {"a": size}, frozenset("a" if company else "")))
        found = usual.of("a", 0)
        assert found is not None
        excuses.append(found.in_company)
    assert excuses == [None, 1.0, pytest.approx(2.0), pytest.approx(2.0), pytest.approx(1.8)]


@pytest.mark.parametrize("tiny", [0.0, 1e-9])
def test_one_that_brings_next_to_nothing_puts_nobody_out(tiny: float) -> None:
    assert left_out(member("a", 1, 1), member("b", 1, 1), member("c", tiny, tiny)) == []


def test_two_of_four_that_are_huge_do_not_cover_each_other() -> None:
    assert left_out(member("a", 1, 1), member("b", 1, 1), member("c", 1e9, 1), member("d", 1, 1e9)) == ["c", "d"]


def test_of_two_the_larger_is_out_unless_it_is_as_it_always_was() -> None:
    small, large = member("a", 1, 1), member("b", 100, 100)
    assert left_out(small, large) == ["b"]
    assert left_out(small, member("b", 100, 100, usual=used_to(100 / LARGEST_RATIO))) == []
    assert left_out(small, member("b", 100, 100, usual=used_to(99 / LARGEST_RATIO))) == ["b"]


def test_two_others_in_their_warm_up_do_not_exclude_one_of_its_usual_size() -> None:
    others = [member("a", 1, 1), member("b", 1, 1)]
    assert left_out(*others, member("c", 100, 100, usual=used_to(100 / OWN_RATIO))) == []
    assert left_out(*others, member("c", 100, 100, usual=used_to(99 / OWN_RATIO))) == ["c"]


@pytest.mark.parametrize(
    ("others", "bound"), [("ab", LARGEST_RATIO), ("abd", LARGEST_RATIO), ("a", OWN_RATIO * LARGEST_RATIO)]
)
def test_growing_slowly_raises_the_bound_only_where_there_is_one_other(others: str, bound: float) -> None:
    usual = UsualSizes()
    size, merged = 1.0, []
    while size < 1e6:
        grown = member("c", size, size, usual=usual.of("c", 0))
        found = compare([*(member(other, 1, 1) for other in others), grown], TENSORS)
        usual.remember(0, found)
        merged += [size] * ("c" not in found.left_out)
        size *= 1.1
    assert bound / 1.1 < max(merged) <= bound


@pytest.mark.parametrize("others", ["a", "ab", "abd"])
def test_what_a_learner_did_alone_does_not_excuse_it_beside_others(others: str) -> None:
    grown = grown_alone("c").of("c", 0)
    assert grown is not None
    assert grown.size > 100
    honest = [member(other, 1, 1) for other in others]
    for size in (1000.0, 100.0, 1.01 * LARGEST_RATIO):
        assert left_out(*honest, member("c", size, size, usual=grown)) == ["c"]
    assert left_out(*honest, member("c", LARGEST_RATIO, LARGEST_RATIO, usual=grown)) == []
    by_earlier_rules = grown_alone("c", apart=False).of("c", 0)
    assert left_out(*honest, member("c", 1000, 1000, usual=by_earlier_rules)) == []


def test_growing_alone_between_joint_merges_raises_no_bound() -> None:
    usual = UsualSizes()
    size, merged = 1.0, []
    while size < 1e6:
        usual.remember(0, compare_alone(member("c", size, size, usual=usual.of("c", 0)), sum(NUMELS)))
        grown = member("c", size, size, usual=usual.of("c", 0))
        found = compare([member("a", 1, 1), member("b", 1, 1), grown], TENSORS)
        usual.remember(0, found)
        merged += [size] * ("c" not in found.left_out)
        size *= 1.1
    assert max(merged) <= LARGEST_RATIO


def test_others_that_bring_nothing_are_no_company() -> None:
    usual = UsualSizes()
    for _ in range(12):
        usual.remember(0, compare([member("a", 0, 0), member("c", 1e3, 1e3, usual=usual.of("c", 0))], TENSORS))
    assert left_out(member("a", 1, 1), member("b", 1, 1), member("c", 1e3, 1e3, usual=usual.of("c", 0))) == ["c"]


def test_who_was_alone_while_all_sizes_fell_is_merged_beside_others() -> None:
    usual = UsualSizes()

    def meet(size: float) -> list[str]:
        found = compare([member(name, size, size, usual=usual.of(name, 0)) for name in "abc"], TENSORS)
        usual.remember(0, found)
        return sorted(found.left_out)

    assert [meet(1.0) for _ in range(5)] == [[]] * 5
    for merge in range(60):
        alone = 0.9**merge
        usual.remember(0, compare_alone(member("c", alone, alone, usual=usual.of("c", 0)), sum(NUMELS)))
    excuse = usual.of("c", 0)
    assert excuse is not None
    assert excuse.in_company == pytest.approx(excuse.size)
    assert [meet(alone) for _ in range(5)] == [[]] * 5


def test_one_that_was_always_alone_is_merged_once_the_others_are_warm() -> None:
    usual = UsualSizes()
    for _ in range(30):
        usual.remember(0, compare_alone(member("c", 1, 1, usual=usual.of("c", 0)), sum(NUMELS)))
    outcomes = []
    for step in range(1, 41):
        sizes = {"a": step / 40, "b": step / 40, "c": 1.0}
        found = compare([member(name, size, size, usual=usual.of(name, 0)) for name, size in sizes.items()], TENSORS)
        usual.remember(0, found)
        outcomes.append(sorted(found.left_out))
    assert outcomes == [["c"]] * 2 + [[]] * 38


def test_more_steps_move_further() -> None:
    assert left_out(member("a", 1, 1), member("b", 1, 1, steps=1000)) == []
    far = MeasuredMember("b", 1000, (1000.0 * 100, 1000.0 * 4), None)
    assert left_out(member("a", 1, 1), far) == []
    assert left_out(member("a", 1, 1), MeasuredMember("b", 1, far.squares, None)) == ["b"]


def test_a_tensor_that_one_learner_trains_alone_is_no_outlier() -> None:
    assert left_out(member("a", 1, 0), member("b", 1, 0), member("c", 1, 2)) == []
    assert left_out(member("a", 0, 0), member("b", 0, 0), member("c", 1, 2)) == []
    assert left_out(member("a", 1, 0), member("b", 1, 0), member("c", 1, 20)) == ["c"]


def test_what_is_remembered_is_no_larger_than_the_bound() -> None:
    grown = member("b", 100, 100, usual=used_to(60))
    sizes = compare([member("a", 1, 1), grown], TENSORS).sizes
    assert sizes["b"] == pytest.approx(OWN_RATIO)
    assert sizes["a"] == pytest.approx(1.0)
    assert compare([member("a", 0, 0), member("b", 3, 3)], TENSORS).sizes["b"] == pytest.approx(3.0)


def test_one_that_is_alone_is_held_against_its_past_once_it_has_one() -> None:
    for merges, size, out in (
        (LEAST_PAST - 1, 1000.0, False),
        (LEAST_PAST, 1000.0, True),
        (LEAST_PAST, 0.99 * LARGEST_RATIO, False),
    ):
        found = compare_alone(MeasuredMember("a", 4, (size**2 * 4 * 104,), UsualSize(1.0, merges)), 104)
        assert list(found.left_out) == ["a"] * out
        assert found.sizes["a"] == pytest.approx(LARGEST_RATIO if out else size)
    assert compare_alone(MeasuredMember("a", 1, (1e20,), None), 104).left_out == {}
    assert compare_alone(MeasuredMember("a", 1, (1e20,), UsualSize(0.0, 9)), 104).left_out == {}


def test_a_size_that_lasts_becomes_the_usual_one() -> None:
    usual = UsualSizes()
    merged = []
    for size in [1.0] * 5 + [1000.0] * 8:
        found = compare_alone(MeasuredMember("a", 1, (size**2,), usual.of("a", 3)), 1)
        usual.remember(3, found)
        merged.append(not found.left_out)
    assert merged == [True] * 5 + [False] * 3 + [True] * 5
    assert usual.of("a", 2) is None
    assert usual.of("b", 3) is None


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
@pytest.mark.parametrize("method", ["RDA", "Mean"])
@pytest.mark.parametrize("honest", [1, 2, 3])
def test_a_bad_member_is_left_out_and_the_rest_merge_as_if_it_were_absent(
    honest: int, method: str, embedding: bool, how: str
) -> None:
    fragment = fragment_of((1000,), embeddings=[0] if embedding else [])
    deltas = {f"h{index}": noise(index) for index in range(honest)}
    rule = Rule(method, bounded=True)  # type: ignore[arg-type]  # a name of a method
    expected, alone = merge_into_zero(fragment, contributions_of(deltas), rule)
    weights = [0.5 / honest] * honest + [0.5]
    merged, statistics = merge_into_zero(fragment, raw({**deltas, "liar": spoilt(how)}, weights), rule)
    assert list(statistics.verdict.left_out) == ["liar"]
    assert alone.verdict.left_out == {}
    torch.testing.assert_close(merged, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("how", ["1e31", "NaN"])
def test_where_nobody_is_left_the_merge_fails_and_names_all(how: str) -> None:
    both = {"a": spoilt(how), "b": spoilt(how)}
    for deltas in (both, {"a": both["a"]}):
        with pytest.raises(MergeError) as failed:
            merge_into_zero(fragment_of((1000,)), raw(deltas), Rule(bounded=True))
        assert sorted(failed.value.verdict.left_out) == sorted(deltas)
        reason = f"it is longer than {LARGEST_NORM:g}" if how == "1e31" else "it holds values that are not finite"
        assert set(failed.value.verdict.left_out.values()) == {reason}


def test_a_lone_member_beyond_its_usual_size_leaves_the_fragment_unchanged() -> None:
    contributions = contributions_of({"a": noise(0)}, usual=UsualSize(1e-5, LEAST_PAST))
    with pytest.raises(MergeError, match=r"the outer gradient of a: it is .* as large as this learner's usually"):
        merge_into_zero(fragment_of((1000,)), contributions, Rule(bounded=True))
    merge_into_zero(fragment_of((1000,)), contributions, Rule())


def test_a_verdict_on_nobody_remembers_nothing() -> None:
    usual = UsualSizes()
    usual.remember(0, Verdict({}, {}))
    assert usual.of("a", 0) is None
