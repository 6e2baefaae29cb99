"""How long a round that has its quorum waits for the answers of learners that are ready (ours).

In the paper, the members of a round are the learners that are ready, and their fragments are fetched afterwards. Here a
learner is ready when it trains, has the version that its last outer gradient went into, and has made a step since.
Waiting for its answer has a cost and a gain. Each second of waiting costs the work of all learners in that second,
which the result overwrites. Each answer adds the work of its learner since it received the fragment. The round waits
for the learners whose answers add more than the wait costs, for each no longer than its usual time plus four mean
deviations. It never waits beyond the overlap, which determines the number of fragments in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

DEADLINE_DEVIATIONS = 4.0
"""A learner is waited for until this many mean deviations after its usual time (RFC 6298 uses the same number)."""
LEAST_DEVIATION = 1 / 32
"""Least deviation, as a share of the usual time and of an inner step: past regularity is not that exact (ours)."""


class Expectation(StrEnum):
    """What is expected of a learner that was asked and has not answered."""

    AWAITED = "its answer is on its way and worth the wait"
    NOT_WORTH_IT = "waiting costs the others more than its answer adds"
    TOO_SLOW = "usually comes after the bound"
    MISSED = "has not answered since it was last waited for"


class Candidate(NamedTuple):
    """A learner that is ready and has not answered."""

    learner: str
    since: float
    """When it was asked, or became ready after that."""
    usual_seconds: float | None
    """Its usual time to answer; None: never measured."""
    deviation_seconds: float
    stake_tokens: float
    """Tokens it has trained since it received the fragment."""
    missed: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """The learners to wait for, each with its deadline, and what is expected of the others."""

    deadlines: Mapping[str, float]
    expectations: Mapping[str, Expectation]
    reason: str


def wait_for(
    candidates: Sequence[Candidate], now: float, bound_at: float, *, tokens_per_second: float, step_seconds: float
) -> Wait:
    """Decide which learners a round waits for, until ``bound_at`` at the latest.

    ``tokens_per_second``: what all learners that train lose by a second of waiting. Candidates are ordered by id.
    """
    expectations: dict[str, Expectation] = {}
    arrivals: list[tuple[float, str, Candidate]] = []
    for candidate in candidates:
        if candidate.missed:
            expectations[candidate.learner] = Expectation.MISSED
            continue
        usual = candidate.usual_seconds
        at = bound_at if usual is None else max(now, candidate.since + usual)
        if at > bound_at or bound_at <= now:
            expectations[candidate.learner] = Expectation.TOO_SLOW
            continue
        arrivals.append((at, candidate.learner, candidate))
    arrivals.sort()
    stake, best, taken = 0.0, 0.0, 0
    for number, (at, _, candidate) in enumerate(arrivals, start=1):
        stake += candidate.stake_tokens
        gain = stake - (at - now) * tokens_per_second
        if gain > best:
            best, taken = gain, number
    deadlines = {learner: _deadline(candidate, bound_at, step_seconds) for _, learner, candidate in arrivals[:taken]}
    expectations |= dict.fromkeys(deadlines, Expectation.AWAITED)
    expectations |= {learner: Expectation.NOT_WORTH_IT for _, learner, _ in arrivals[taken:]}
    return Wait(deadlines, expectations, _reason(expectations, deadlines, now, bound_at))


def _deadline(candidate: Candidate, bound_at: float, step_seconds: float) -> float:
    if candidate.usual_seconds is None:
        return bound_at
    deviation = max(candidate.deviation_seconds, LEAST_DEVIATION * (candidate.usual_seconds + step_seconds))
    return min(bound_at, candidate.since + candidate.usual_seconds + DEADLINE_DEVIATIONS * deviation)


def _reason(
    expectations: Mapping[str, Expectation], deadlines: Mapping[str, float], now: float, bound_at: float
) -> str:
    waits = ", ".join(f"{name} at most {until - now:.3f} s" for name, until in sorted(deadlines.items()))
    not_for = sorted((name, kind) for name, kind in expectations.items() if kind != Expectation.AWAITED)
    others = ", ".join(f"{name} ({kind})" for name, kind in not_for)
    parts = [f"waits for {waits}" if waits else "waits for no answer"]
    if others:
        parts.append(f"not for {others}")
    return f"{'; '.join(parts)}; the bound is {max(0.0, bound_at - now):.3f} s away"
