import math
from dataclasses import replace

import pytest
import torch

from diloco.core.merge.codecs import CODECS, codec_named
from diloco.core.merge.fragment_merge import Contribution, MergeError, MergeTarget
from diloco.core.merge.radial import CANCELLATION
from diloco.spec.outer_choice import DILOCO
from diloco.spec.sync import MergeName
from tests.support.fragment_merge import (
    METHODS,
    Rule,
    contributions_of,
    fragment_of,
    merge,
    merge_into_zero,
    random,
)


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
@pytest.mark.parametrize("method", METHODS)
def test_one_learners_merge_is_its_own_gradient_to_the_bit(method: MergeName, codec: str) -> None:
    fragment = fragment_of((30, 7), (11,), embeddings=[1])
    contributions = contributions_of({"a": random(221)}, codec=codec)
    merged, statistics = merge_into_zero(fragment, contributions, Rule(method, codec))
    decoded = torch.empty(221)
    codec_named(codec).decode_into(contributions[0].payload, 0, decoded)
    assert torch.equal(merged, decoded)
    assert statistics.agreement == 1.0
    assert statistics.gradient_norm == pytest.approx(decoded.norm().item(), rel=1e-6)


def test_rda_keeps_the_norm_of_orthogonal_members_and_the_mean_shrinks_it() -> None:
    fragment = fragment_of((4,))
    deltas = dict(zip("abcd", torch.eye(4).unbind(), strict=True))
    radial, statistics = merge_into_zero(fragment, contributions_of(deltas))
    mean, _ = merge_into_zero(fragment, contributions_of(deltas), Rule("Mean"))
    assert radial.norm().item() == pytest.approx(1.0, rel=1e-6)
    assert mean.norm().item() == pytest.approx(0.5, rel=1e-6)
    assert statistics.agreement == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("embeddings", [[0, 2], [0, 1], [1, 2]])
def test_embeddings_are_merged_by_the_weighted_mean(embeddings: list[int]) -> None:
    fragment = fragment_of((3, 2), (8,), (5, 2), embeddings=embeddings)
    deltas = {"a": random(24, seed=1), "b": random(24, seed=2)}
    radial, _ = merge_into_zero(fragment, contributions_of(deltas, [0.75, 0.25]))
    mean, _ = merge_into_zero(fragment, contributions_of(deltas, [0.75, 0.25]), Rule("Mean"))
    for index, slot in enumerate(fragment.slots):
        within = slice(slot.offset, slot.offset + slot.tensor.numel)
        assert torch.equal(radial[within], mean[within]) == (index in embeddings)


def test_a_zero_has_no_direction_but_counts_in_the_norm() -> None:
    fragment = fragment_of((4,))
    step = torch.tensor([3.0, 0.0, 4.0, 0.0])
    merged, _ = merge_into_zero(fragment, contributions_of({"a": torch.zeros(4), "b": step}, [0.25, 0.75]))
    torch.testing.assert_close(merged, 0.75 * step)


def test_all_zero_stays_zero_and_is_no_cancellation() -> None:
    merged, statistics = merge_into_zero(
        fragment_of((4,)), contributions_of({"a": torch.zeros(4), "b": torch.zeros(4)})
    )
    assert torch.equal(merged, torch.zeros(4))
    assert statistics.cancelled == ()


@pytest.mark.parametrize("apart", [0.0, 1e-7, CANCELLATION])
def test_directions_that_cancel_move_nothing(apart: float) -> None:
    fragment = fragment_of((2,), (3,))
    forth = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    back = torch.tensor([-1.0, apart, 1.0, 1.0, 1.0])
    merged, statistics = merge_into_zero(fragment, contributions_of({"a": forth, "b": back}))
    assert torch.equal(merged[:2], torch.zeros(2))
    assert statistics.cancelled == ("t0",)
    torch.testing.assert_close(merged[2:], torch.ones(3))


def test_directions_that_leave_more_than_rounding_keep_the_full_norm() -> None:
    forth, back = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 8 * CANCELLATION])
    merged, statistics = merge_into_zero(fragment_of((2,)), contributions_of({"a": forth, "b": back}))
    torch.testing.assert_close(merged, torch.tensor([0.0, 1.0]), rtol=0, atol=2e-3)
    assert statistics.cancelled == ()


@pytest.mark.parametrize("scale", [1e-35, 1e-25, 1e25])
def test_norms_beyond_the_range_of_f32_squares_are_right(scale: float) -> None:
    fragment = fragment_of((5000,))
    deltas = {"a": random(5000, seed=1), "b": random(5000, seed=2)}
    expected, _ = merge_into_zero(fragment, contributions_of(deltas))
    merged, _ = merge_into_zero(fragment, contributions_of({name: delta * scale for name, delta in deltas.items()}))
    torch.testing.assert_close((merged.double() / scale).float(), expected, rtol=1e-4, atol=1e-4)


def test_a_vanishing_member_beside_a_large_one_keeps_the_result_finite() -> None:
    deltas = {"a": torch.full((4,), 1e-38), "b": torch.full((4,), 1e10)}
    merged, _ = merge_into_zero(fragment_of((4,)), contributions_of(deltas))
    torch.testing.assert_close(merged, torch.full((4,), 0.5e10))


def test_drift_is_added_to_the_decoded_gradient() -> None:
    fragment = fragment_of((6,), (5,))
    deltas = {"a": random(11, seed=1), "b": random(11, seed=2)}
    drift = random(11, seed=3)
    shifted = contributions_of({"a": deltas["a"] + drift, "b": deltas["b"]})
    drifted = contributions_of(deltas)
    drifted[0] = replace(drifted[0], drift=drift)
    for method in METHODS:
        expected, _ = merge_into_zero(fragment, shifted, Rule(method))
        assert torch.equal(merge_into_zero(fragment, drifted, Rule(method))[0], expected)
    assert torch.equal(drifted[0].payload, contributions_of(deltas)[0].payload)


def test_every_learner_each_step_by_the_mean_is_parameter_averaging() -> None:
    fragment = fragment_of((100, 3), (17,), embeddings=[0])
    start = random(317)
    learners = {name: start + 1e-2 * random(317, seed=seed) for seed, name in enumerate("abcd", 1)}
    contributions = contributions_of({name: start - held for name, held in learners.items()})
    made, _ = merge(fragment, contributions, Rule("Mean"), parameters=start)
    torch.testing.assert_close(made.parameters, torch.stack(list(learners.values())).mean(0), rtol=1e-6, atol=1e-6)


def test_momentum_in_place_and_in_another_buffer_is_the_same() -> None:
    fragment = fragment_of((50,))
    before = random(50, seed=4)
    results = []
    for target in (None, torch.empty(50)):
        momentum = before.clone()
        into = MergeTarget(torch.empty(50), momentum if target is None else target)
        contributions, parameters = contributions_of({"a": random(50)}), random(50, seed=5)
        merge(fragment, contributions, Rule(outer=DILOCO), parameters=parameters, momentum=momentum, into=into)
        results.append(into)
        assert target is None or torch.equal(momentum, before)
    assert torch.equal(results[0].parameters, results[1].parameters)
    assert torch.equal(results[0].momentum, results[1].momentum)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("codec", ["None", "BF16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_payload_that_is_not_finite_is_refused_and_changes_nothing(
    method: MergeName, codec: str, wrong: float
) -> None:
    fragment = fragment_of((20,), (6,), embeddings=[1])
    contributions = contributions_of({"a": random(26), "b": random(26, seed=1)}, codec=codec)
    dtype = torch.float32 if codec == "None" else torch.bfloat16
    contributions[1].payload.view(dtype)[22] = wrong  # in the embedding: its norms are not measured
    parameters, momentum = random(26, seed=2), random(26, seed=3)
    with pytest.raises(MergeError, match="of b holds values that are not finite"):
        merge(fragment, contributions, Rule(method, codec, DILOCO), parameters=parameters, momentum=momentum)
    assert torch.equal(parameters, random(26, seed=2))
    assert torch.equal(momentum, random(26, seed=3))


def test_a_mean_that_overflows_is_refused() -> None:
    drift = torch.full((4,), 3e38)
    contribution = Contribution("a", 1.0, contributions_of({"a": drift})[0].payload, drift=drift)
    with pytest.raises(MergeError, match="not finite"):
        merge_into_zero(fragment_of((4,)), [contribution], Rule("Mean"))


@pytest.mark.parametrize(
    ("contributions", "message"),
    [
        ([], "at least one contribution"),
        ([Contribution("a", 0.5, torch.zeros(16, dtype=torch.uint8))] * 2, "one from each learner"),
        (contributions_of({"a": torch.ones(4), "b": torch.ones(4)}, [1.5, -0.5]), "must not be negative"),
        ([Contribution("a", 0.9, torch.zeros(16, dtype=torch.uint8))], "sum to one"),
        ([Contribution("a", math.nan, torch.zeros(16, dtype=torch.uint8))], "sum to one"),
        ([Contribution("a", 1.0, torch.zeros(15, dtype=torch.uint8))], "has 15 bytes, not the 16"),
        ([Contribution("a", 1.0, torch.zeros(16, dtype=torch.uint8), torch.zeros(3))], "has 4 elements"),
        ([Contribution("a", 1.0, torch.zeros(16, dtype=torch.uint8), torch.zeros(2, 2))], "flat contiguous"),
    ],
)
def test_contributions_that_do_not_fit_are_refused(contributions: list[Contribution], message: str) -> None:
    with pytest.raises(MergeError, match=message):
        merge_into_zero(fragment_of((4,)), contributions)


def test_the_result_may_not_overwrite_the_parameters() -> None:
    parameters, momentum = torch.zeros(4), torch.zeros(4)
    with pytest.raises(MergeError, match="a buffer of their own"):
        merge(
            fragment_of((4,)),
            contributions_of({"a": torch.ones(4)}),
            Rule("Mean"),
            parameters=parameters,
            into=MergeTarget(parameters, momentum),
        )
