import pytest

from diloco.core.weights import normalized, token_weight


def test_a_weight_is_quantity_times_quality() -> None:
    assert token_weight(1000, 10) == 1000 * (1000 / 10)


@pytest.mark.parametrize(("tokens", "steps"), [(0, 10), (10, 0), (0, 0)])
def test_no_tokens_or_no_steps_weigh_nothing(tokens: int, steps: int) -> None:
    assert token_weight(tokens, steps) == 0


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": 1.0, "b": -1.0}])
def test_weights_that_cannot_be_normalized_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        normalized(weights)
