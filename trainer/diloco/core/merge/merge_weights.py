"""The weight of each learner's outer gradient in a merge.

Paper: ``w = c_tokens * (c_tokens / c_steps)``, quantity times quality; 0 if either count is 0; then normalized.
"""

from collections.abc import Mapping


def token_weight(tokens: int, steps: int) -> float:
    """Weight, not yet normalized, of a learner that trained ``tokens`` in ``steps`` on the fragment."""
    if tokens <= 0 or steps <= 0:
        return 0.0
    return tokens * (tokens / steps)


def normalized(weights: Mapping[str, float]) -> dict[str, float]:
    """The same weights, summing to one. Added in the order of the names, so that arrival order changes no bit.

    Raises:
        ValueError: no weight is positive, or one is negative.
    """
    ordered = {name: weights[name] for name in sorted(weights)}
    total = sum(ordered.values())
    if total <= 0 or min(ordered.values()) < 0:
        raise ValueError("weights must not be negative, and at least one must be positive")
    return {name: weight / total for name, weight in ordered.items()}
