"""What a merge refuses or leaves out, which learner it names, and its statistics of the others."""

import math
from dataclasses import replace

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.core.merge.fragment_merge import Contribution, MergeError
from diloco.core.merge.member_sizes import UsualSize
from diloco.core.merge.outliers import LEAST_PAST
from diloco.spec.sync import MergeName
from tests.support.fragment_merge import METHODS, Rule, contributions_of, fragment_of, merge_into_zero


def raw(values: torch.Tensor) -> torch.Tensor:
    """A payload as a hostile learner may send it, because encoders refuse values that are not finite."""
    return values.view(torch.uint8)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_the_limit_of_an_outer_gradients_length_is_1e30(method: MergeName, members: int, *, bounded: bool) -> None:
    for length, refused in ((0.999e30, False), (1.001e30, True)):
        deltas = {f"{index}": torch.tensor([0.6, -0.8]) * length for index in range(members)}
        contributions = contributions_of(deltas)
        rule = Rule(method, bounded=bounded, usual=UsualSize(LEAST_PAST, length))
        if refused:
            with pytest.raises(MergeError):
                merge_into_zero(fragment_of((2,)), contributions, rule)
        else:
            merged, statistics = merge_into_zero(fragment_of((2,)), contributions, rule)
            torch.testing.assert_close(merged, deltas["0"])
            assert statistics.verdict.left_out == {}


def test_a_member_too_long_is_refused_by_direction_whatever_it_weighs() -> None:
    deltas = {"a": torch.tensor([3e30, 4e30]), "b": torch.tensor([1.0, 0.0])}
    with pytest.raises(MergeError, match="too large for float32"):
        merge_into_zero(fragment_of((2,)), contributions_of(deltas, [0.01, 0.99]))


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_the_error_says_who_is_at_fault_in_words_and_by_id(method: MergeName, members: int, *, bounded: bool) -> None:
    broken = torch.tensor([1.0, math.nan])
    contributions = [Contribution(f"{index}", 1 / members, raw(broken)) for index in range(members)]
    with pytest.raises(MergeError) as failed:
        merge_into_zero(fragment_of((2,)), contributions, Rule(method, bounded=bounded))
    assert failed.value.verdict.left_out == {
        f"{index}": "it holds values that are not finite" for index in range(members)
    }
    nobody = bounded and members > 1
    text = "no outer gradient can be merged" if nobody else "the outer gradient of 0 holds values that are not finite"
    assert str(failed.value) == text


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_member_of_weight_zero_is_not_even_read(method: MergeName, *, bounded: bool) -> None:
    kept = contributions_of({"a": torch.tensor([0.125, 0.25])})
    spoilt = Contribution("b", 0.0, raw(torch.tensor([math.nan, 1.0])))
    rule = Rule(method, bounded=bounded)
    merged, statistics = merge_into_zero(fragment_of((2,)), [*kept, spoilt], rule)
    assert torch.equal(merged, torch.tensor([0.125, 0.25]))
    assert statistics.verdict.left_out == {}


@pytest.mark.parametrize("bounded", [False, True])
def test_where_nobody_is_left_out_weights_stay_as_they_are_to_the_bit(*, bounded: bool) -> None:
    deltas = {"a": torch.tensor([1.0, 0.3, 0.1]), "b": torch.tensor([0.2, 1.1, 0.7])}
    weights = [0.5, 0.5 + 9e-7]  # as near to one as a merge requires
    merged, _ = merge_into_zero(fragment_of((3,)), contributions_of(deltas, weights), Rule("Mean", bounded=bounded))
    assert torch.equal(merged, (deltas["a"] * weights[0]).add_(deltas["b"], alpha=weights[1]))


@pytest.mark.parametrize("members", [1, 2])
def test_sizes_are_told_for_one_step_unless_steps_are_given(members: int) -> None:
    deltas = {f"{index}": torch.tensor([0.3, 0.4, 0.0, 0.0]) for index in range(members)}  # root mean square: 0.25
    contributions = contributions_of(deltas)
    _, statistics = merge_into_zero(fragment_of((4,)), contributions, Rule(bounded=True))
    assert statistics.verdict.usual.size == pytest.approx(0.25)
    longer = [replace(one, steps=25) for one in contributions]
    _, statistics = merge_into_zero(fragment_of((4,)), longer, Rule(bounded=True))
    assert statistics.verdict.usual.size == pytest.approx(0.05)


def test_the_one_that_is_left_is_remembered_and_the_other_named() -> None:
    kept = contributions_of({"a": torch.tensor([0.25, 0.25])}, [0.5])
    spoilt = Contribution("b", 0.5, raw(torch.tensor([math.inf, 1.0])))
    merged, statistics = merge_into_zero(fragment_of((2,)), [*kept, spoilt], Rule(bounded=True))
    assert torch.equal(merged, torch.tensor([0.25, 0.25]))
    assert list(statistics.verdict.left_out) == ["b"]
    assert statistics.verdict.usual.size == pytest.approx(0.25)


@pytest.mark.parametrize("codec", ["BF16", "Int8"])
def test_a_merge_of_encoded_members_keeps_to_the_same_limit(codec: str) -> None:
    payload = codec_named(codec).encode(torch.tensor([1e31, 0.0]))
    with pytest.raises(MergeError, match="the outer gradient of a is too large for float32") as failed:
        merge_into_zero(fragment_of((2,)), [Contribution("a", 1.0, payload)], Rule(codec=codec))
    assert failed.value.verdict.left_out == {"a": "it is longer than 1e+30"}
