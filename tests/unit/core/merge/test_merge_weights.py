import pytest

from diloco.core.merge.merge_weights import normalized, token_weight


@pytest.mark.parametrize(
    ("tokens", "steps", "weight"), [(1, 1, 1.0), (10, 1, 100.0), (10, 4, 25.0), (0, 4, 0.0), (10, 0, 0.0)]
)
def test_a_weight_is_the_tokens_times_the_tokens_of_a_step(tokens: int, steps: int, weight: float) -> None:
    assert token_weight(tokens, steps) == weight


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"a": 1.0, "b": 3.0}, {"a": 0.25, "b": 0.75}),
        ({"a": 0.25, "b": 0.25}, {"a": 0.5, "b": 0.5}),
        ({"a": 0.0, "b": 0.5}, {"a": 0.0, "b": 1.0}),
    ],
)
def test_shares_sum_to_one(weights: dict[str, float], shares: dict[str, float]) -> None:
    assert normalized(weights) == shares


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": 3.0, "b": -1.0}, {"a": -1.0}])
def test_weights_without_a_sum_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        normalized(weights)
