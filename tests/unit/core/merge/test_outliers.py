"""Which members are left out of a merge for their size, and which are not."""

import math
from collections.abc import Sequence

import pytest
import torch

from diloco.core.merge.fragment_merge import Contribution, MergeError
from diloco.core.merge.outliers import (
    LARGEST_RATIO,
    LEAST_PAST,
    LEAST_STANDARD,
    OWN_RATIO,
    MeasuredMember,
    UsualSize,
    UsualSizes,
    Verdict,
    compare,
    compare_alone,
)
from diloco.spec.sync import MergeName
from tests.support.fragment_merge import METHODS, Rule, contributions_of, fragment_of, merge, merge_into_zero

NUMELS = (100, 4)
TENSORS = [("large", 100), ("small", 4)]


def member(learner: str, *sizes: float, steps: int = 1, usual: UsualSize | None = None) -> MeasuredMember:
    """A member whose elements are as large as ``sizes``, by tensor, after one step."""
    squares = tuple(size**2 * numel * steps for size, numel in zip(sizes, NUMELS, strict=True))
    return MeasuredMember(learner, steps, squares, usual)


def parameters() -> float:
    """How large the fragment's parameters are."""
    return 1.0


def used_to(size: float) -> UsualSize:
    """The usual size of a member that was merged once with others."""
    return UsualSize(size, 1, size)


class Merges:
    """Merges of one fragment, and what is remembered of each."""

    def __init__(self) -> None:
        self.usual = UsualSizes()

    def alone(self, size: float) -> None:
        """Of "c" by itself."""
        usual = self.usual.of("c", 0)
        self.usual.remember(0, compare_alone(member("c", size, size, usual=usual), sum(NUMELS), parameters))

    def together(self, **sizes: float) -> list[str]:
        """Of learners of these sizes; returns who is left out."""
        members = [member(name, size, size, usual=self.usual.of(name, 0)) for name, size in sizes.items()]
        found = compare(members, TENSORS, parameters)
        self.usual.remember(0, found)
        return sorted(found.left_out)


def left_out(*members: MeasuredMember) -> list[str]:
    return sorted(compare(members, TENSORS, parameters).left_out)


def test_the_bound_acts_beyond_it_and_not_at_it() -> None:
    others = [member("a", 1, 1), member("b", 1, 1)]
    assert left_out(*others, member("c", LARGEST_RATIO, LARGEST_RATIO)) == []
    assert left_out(*others, member("c", 1.01 * LARGEST_RATIO, 1)) == ["c"]
    found = compare([*others, member("c", 1, 40)], TENSORS, parameters)
    assert found.left_out == {"c": "it is 40 times as large in small as the others are"}
    assert (LARGEST_RATIO, OWN_RATIO, LEAST_PAST) == (16.0, 4.0, 4)


def test_a_size_is_the_root_mean_square_over_the_root_of_the_steps() -> None:
    one = MeasuredMember("a", 4, (400.0, 64.0), None)
    assert (one.size(0, 100), one.size(1, 4)) == (1.0, 2.0)
    assert one.whole_size(116) == 1.0
    assert MeasuredMember("a", 0, (400.0,), None).size(0, 100) == 2.0


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
    merges, size, merged = Merges(), 1.0, []
    while size < 1e6:
        merged += [size] * ("c" not in merges.together(**dict.fromkeys(others, 1.0), c=size))
        size *= 1.1
    assert bound / 1.1 < max(merged) <= bound


@pytest.mark.parametrize("others", ["a", "ab", "abd"])
def test_what_a_learner_did_alone_does_not_excuse_it_beside_others(others: str) -> None:
    merges = Merges()
    for size in [1.0] * LEAST_PAST + [1000.0] * 12:  # as large as the others, and then alone with growing sizes
        merges.alone(size)
    grown = merges.usual.of("c", 0)
    assert grown is not None
    assert grown.size > 100
    honest = [member(other, 1, 1) for other in others]
    for size in (1000.0, 100.0, 1.01 * LARGEST_RATIO):
        assert left_out(*honest, member("c", size, size, usual=grown)) == ["c"]
    assert left_out(*honest, member("c", LARGEST_RATIO, LARGEST_RATIO, usual=grown)) == []


def test_growing_alone_between_joint_merges_raises_no_bound() -> None:
    merges, size, merged = Merges(), 1.0, []
    while size < 1e6:
        merges.alone(size)
        merged += [size] * ("c" not in merges.together(a=1.0, b=1.0, c=size))
        size *= 1.1
    assert max(merged) <= LARGEST_RATIO


def test_others_that_bring_nothing_are_no_company() -> None:
    merges = Merges()
    for _ in range(12):
        assert merges.together(a=0.0, c=15.0) == []
    assert merges.together(a=1.0, b=1.0, c=17.0) == ["c"]


def test_who_was_alone_while_all_sizes_fell_is_merged_beside_others() -> None:
    merges = Merges()
    assert [merges.together(a=1.0, b=1.0, c=1.0) for _ in range(5)] == [[]] * 5
    size = 1.0
    for _ in range(60):
        merges.alone(size)
        size *= 0.9
    excuse = merges.usual.of("c", 0)
    assert excuse is not None
    assert excuse.in_company == pytest.approx(excuse.size)
    assert [merges.together(a=size, b=size, c=size) for _ in range(5)] == [[]] * 5


def test_one_that_was_always_alone_is_merged_once_the_others_are_warm() -> None:
    merges = Merges()
    for _ in range(30):
        merges.alone(1.0)
    outcomes = [merges.together(a=step / 40, b=step / 40, c=1.0) for step in range(1, 41)]
    assert outcomes == [["c"]] * 2 + [[]] * 38


def test_a_tensor_that_one_learner_trains_alone_is_no_outlier() -> None:
    assert left_out(member("a", 1, 0), member("b", 1, 0), member("c", 1, 2)) == []
    assert left_out(member("a", 0, 0), member("b", 0, 0), member("c", 1, 2)) == []
    assert left_out(member("a", 1, 0), member("b", 1, 0), member("c", 1, 20)) == ["c"]


@pytest.mark.parametrize("others", ["a", "ab", "abd"])
@pytest.mark.parametrize(
    ("past", "size", "standard"), [(None, 1.0, 1.0), (0.5, 1.0, 1.0), (3.0, 1.0, 3.0), (None, 0.0, LEAST_STANDARD)]
)
def test_beside_zeros_a_member_is_compared_with_past_and_parameters(
    others: str, past: float | None, size: float, standard: float
) -> None:
    usual = None if past is None else UsualSize(past, 1)
    zeros = [member(other, 0, 0) for other in others]
    for ratio, out in ((0.99, []), (1.01, ["c"]), (1e29, ["c"])):
        sent = ratio * LARGEST_RATIO * standard
        for alone in (member("c", sent, sent, usual=usual), member("c", 0, sent, usual=usual)):
            assert sorted(compare([*zeros, alone], TENSORS, lambda: size).left_out) == out


def test_the_parameters_are_measured_only_where_nothing_else_is_a_measure() -> None:
    def never() -> float:
        pytest.fail("measured")

    assert not compare([member("a", 1, 0), member("b", 1, 0), member("c", 1, 2)], TENSORS, never).left_out
    assert not compare_alone(member("a", 1, 1, usual=UsualSize(1.0, LEAST_PAST)), sum(NUMELS), never).left_out


def test_what_is_remembered_is_no_larger_than_the_bound() -> None:
    grown = member("b", 100, 100, usual=used_to(60))
    sizes = compare([member("a", 1, 1), grown], TENSORS, parameters).sizes
    assert sizes["b"] == pytest.approx(OWN_RATIO)
    assert sizes["a"] == pytest.approx(1.0)
    assert compare([member("a", 0, 0), member("b", 3, 3)], TENSORS, parameters).sizes["b"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("usual", "standard"),
    [
        (None, 2.0),
        (UsualSize(1.0, LEAST_PAST - 1), 2.0),
        (UsualSize(3.0, LEAST_PAST - 1), 3.0),
        (UsualSize(1.0, LEAST_PAST), 1.0),
        (UsualSize(0.0, LEAST_PAST), 2.0),
    ],
)
def test_one_that_is_alone_is_compared_with_parameters_and_then_its_past(
    usual: UsualSize | None, standard: float
) -> None:
    for ratio, out in ((0.99, False), (1.01, True), (1e29, True)):
        size = ratio * LARGEST_RATIO * standard
        found = compare_alone(MeasuredMember("a", 4, (size**2 * 4 * 104,), usual), 104, lambda: 2.0)
        assert list(found.left_out) == ["a"] * out
        assert found.sizes["a"] == pytest.approx(LARGEST_RATIO * standard if out else size)


def test_a_size_that_lasts_becomes_the_usual_one() -> None:
    usual = UsualSizes()
    merged = []
    for size in [1.0] * 5 + [1000.0] * 8:
        found = compare_alone(MeasuredMember("a", 1, (size**2,), usual.of("a", 3)), 1, parameters)
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


def test_a_lone_member_beyond_its_usual_size_leaves_the_fragment_unchanged() -> None:
    contributions = contributions_of({"a": noise(0)}, usual=UsualSize(1e-5, LEAST_PAST))
    with pytest.raises(MergeError, match=r"the outer gradient of a: it is .* as large as this learner's usually"):
        merge_into_zero(fragment_of((1000,)), contributions, Rule(bounded=True))
    merge_into_zero(fragment_of((1000,)), contributions, Rule())
