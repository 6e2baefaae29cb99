"""Plans what ``diloco chaos`` does and when: orders with times, from a seed and rates, or from a script. Pure.

Each unit (a learner, pool, region or node, or the syncer) has a random sequence of its own, drawn from the seed, the
kind of fault and the unit's name. So the same seed gives the same orders, and the orders for one unit do not depend on
which others there are.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from diloco.local.chaos.spec import ChaosError, Fault, FaultKind, Manner
from diloco.local.targets import SYNCER, TargetError, learners_named
from diloco.spec.learner_ids import pool_of, region_of

MOST_ORDERS: Final = 10_000
"""Orders of one session (ours)."""
_SECONDS_AN_HOUR: Final = 3600.0


class Unit(StrEnum):
    """What a rate counts failures of."""

    LEARNER = "learners"
    POOL = "pools"
    REGION = "regions"
    NODE = "nodes"
    SYNCER = "syncer"


@dataclass(frozen=True, slots=True)
class Rate:
    """Failures of each unit."""

    kind: FaultKind
    unit: Unit
    per_hour: float
    """Of each unit, on average."""
    seconds: float = 0.0
    """How long a pause or a cut lasts."""
    manner: Manner = Manner.SILENT

    @property
    def flag(self) -> str:
        """The option that gives it."""
        return f"--{self.kind}-{self.unit}"


@dataclass(frozen=True, slots=True)
class Order:
    """One fault at one time."""

    at_seconds: float
    """Since the session began."""
    kind: FaultKind
    target: str
    """The unit that fails, as people name it."""
    victims: tuple[str, ...]
    """Learner ids or ``syncer``; for a cut, region names."""
    seconds: float = 0.0
    manner: Manner = Manner.SILENT
    by_rate: bool = False
    """Whether the time was drawn; otherwise the user named it."""
    around: tuple[str, ...] = ()
    """For a node: the learners that are hit if they run on it when the order is due. ``victims`` ran on it when it was
    planned."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    seconds: float
    """Length of the session."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    """The script."""
    rates: tuple[Rate, ...] = ()
    only: tuple[str, ...] = ()
    """Learners, pools or regions to which the rates are limited; empty: all."""


def plan_orders(
    request: Request, learner_ids: Sequence[str], nodes: Mapping[str, str] | None = None
) -> tuple[Order, ...]:
    """The orders of a session, by time.

    Args:
        request: What the user asked for.
        learner_ids: The learners of the job.
        nodes: In a cluster, the node of each learner that has one.

    Raises:
        ChaosError: a name fits nothing in the job, a time is beyond the session's end, there are too many orders, or
            there are none.
    """
    allowed = _allowed(request.only, learner_ids)
    if not request.faults and not any(rate.per_hour for rate in request.rates):
        raise ChaosError("nothing to do; use --fault, or a rate such as --kill-learners 6")
    orders: list[Order] = []
    for order in _all(request, allowed, nodes or {}):
        orders.append(order)
        if len(orders) > MOST_ORDERS:
            raise ChaosError(
                f"--for: these rates give more than {MOST_ORDERS} orders; use a shorter time or lower rates"
            )
    return tuple(sorted(orders, key=lambda order: (order.at_seconds, order.kind, order.target)))


def units(unit: Unit, learner_ids: Sequence[str], nodes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The units of a kind: name -> its learners (``syncer``: itself)."""
    if unit is Unit.SYNCER:
        return {SYNCER: (SYNCER,)}
    found: dict[str, list[str]] = {}
    for learner in learner_ids:
        name = _unit_of(unit, learner, nodes)
        if name:
            found.setdefault(name, []).append(learner)
    return {name: tuple(learners) for name, learners in found.items()}


def _unit_of(unit: Unit, learner: str, nodes: Mapping[str, str]) -> str:
    if unit is Unit.NODE:
        return nodes.get(learner, "")
    return {Unit.POOL: pool_of, Unit.REGION: region_of}.get(unit, str)(learner)


def _all(request: Request, allowed: Sequence[str], nodes: Mapping[str, str]) -> Iterator[Order]:
    for fault in request.faults:
        yield from _scripted(fault, request)
    for rate in request.rates:
        for name, learners in units(rate.unit, allowed, nodes).items():
            victims = (name,) if rate.kind is FaultKind.CUT else learners
            around = tuple(allowed) if rate.unit is Unit.NODE else ()
            for at in _times(request, f"{rate.kind} {rate.unit} {name}", rate.per_hour):
                yield Order(at, rate.kind, name, victims, rate.seconds, rate.manner, by_rate=True, around=around)


def _scripted(fault: Fault, request: Request) -> Iterator[Order]:
    target = fault.text.partition("@")[0].partition(":")[2]
    if fault.at_seconds is not None:
        if fault.at_seconds > request.seconds:
            raise ChaosError(
                f"--fault {fault.text!r}: at={fault.at_seconds:g} is after the end; use at most --for's "
                f"{request.seconds:g} s, or a longer --for"
            )
        yield Order(fault.at_seconds, fault.kind, target, fault.victims, fault.seconds, fault.manner)
    elif fault.rate_per_hour is not None:
        for victim in fault.victims:
            for at in _times(request, f"{fault.text} {victim}", fault.rate_per_hour):
                yield Order(at, fault.kind, victim, (victim,), fault.seconds, fault.manner, by_rate=True)


def _times(request: Request, name: str, per_hour: float) -> Iterator[float]:
    """Times of a Poisson process within the session."""
    if per_hour <= 0:
        return
    draws = random.Random(f"{request.seed} {name}")  # noqa: S311  # failures, not secrets
    at = draws.expovariate(per_hour / _SECONDS_AN_HOUR)
    while at <= request.seconds:
        yield at
        at += draws.expovariate(per_hour / _SECONDS_AN_HOUR)


def _allowed(only: Sequence[str], learner_ids: Sequence[str]) -> tuple[str, ...]:
    if not only:
        return tuple(learner_ids)
    named: set[str] = set()
    for target in only:
        try:
            named.update(learners_named(target, learner_ids))
        except TargetError as error:
            raise ChaosError(f"--only {target!r}: {error}") from error
    return tuple(learner for learner in learner_ids if learner in named)
