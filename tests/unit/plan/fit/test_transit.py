"""How long fragments are under way, computed by hand for links of a few bytes a second."""

import math
from dataclasses import replace

import pytest

from diloco.plan.fit.situation import SYNCER_LINK, Exchange, LearnerGroup, Link, Situation
from diloco.plan.fit.transit import Course, Transit, course, in_time, transits


def world(*groups: LearnerGroup, syncer_rate: float = math.inf, interval: int = 4) -> Situation:
    """Two fragments of 400 and 1,200 bytes both ways, due after 2 and 4 of 4 steps."""
    exchange = Exchange((100, 300), interval, None, None, 1, "None", "F32")
    return Situation(exchange, groups, Link(SYNCER_LINK, syncer_rate, syncer_rate))


def group(
    name: str, *, learners: int = 1, up: float = math.inf, down: float = math.inf, far: float = 0.0, step: float = 1.0
) -> LearnerGroup:
    return LearnerGroup(f"{name}/p", learners, Link(name, up, down, far), step)


@pytest.mark.parametrize(
    ("groups", "syncer_rate", "answers", "deliveries"),
    [
        # No link limits anything: a result arrives in the middle of a step.
        ((group("west"),), math.inf, (0.0, 0.0), (0.5, 0.5)),
        ((group("west", far=0.5, step=2.0),), math.inf, (0.5, 0.5), (1.25, 1.25)),
        # The large one takes 3 s from 4 s on and keeps the small one waiting that is due at 6 s.
        ((group("west", up=400.0),), math.inf, (2.0, 3.0), (0.5, 0.5)),
        ((group("west", down=400.0),), math.inf, (0.0, 0.0), (2.5, 3.5)),
        ((group("west", up=1600.0),), math.inf, (0.25, 0.75), (0.5, 0.5)),
        ((group("west", up=400.0, far=1.0),), math.inf, (3.0, 4.0), (1.0, 1.0)),
        # A share of a link, and of the syncer's.
        ((group("west", learners=4, up=1600.0, down=6400.0),), math.inf, (2.0, 3.0), (0.75, 1.25)),
        ((group("west", learners=4),), 1600.0, (2.0, 3.0), (2.5, 3.5)),
        ((group("west", up=400.0),), 1600.0, (2.0, 3.0), (0.75, 1.25)),
    ],
)
def test_a_fragment_waits_for_those_before_it(
    groups: tuple[LearnerGroup, ...], syncer_rate: float, answers: tuple[float, ...], deliveries: tuple[float, ...]
) -> None:
    (way,) = transits(world(*groups, syncer_rate=syncer_rate), 1.0)
    assert (way.answers, way.deliveries) == (answers, deliveries)


@pytest.mark.parametrize(
    ("interval", "step_seconds", "rate", "answers"),
    [
        (4, 2.0, 400.0, (1.0, 3.0)),  # the small one is through before the next is due
        (4, 0.5, 800.0, (1.0, 1.5)),
        (2, 0.25, 3200.0, (0.25, 0.375)),  # the link is never idle
    ],
)
def test_fragments_are_due_by_the_quorums_steps(
    interval: int, step_seconds: float, rate: float, answers: tuple[float, ...]
) -> None:
    (way,) = transits(world(group("west", up=rate), interval=interval), step_seconds)
    assert way.answers == answers


def test_groups_behind_one_link_share_it_and_alike_ones_go_one_way() -> None:
    link = Link("west", 1600.0, math.inf, 0.0)
    alike = (LearnerGroup("west/a", 1, link, 1.0), LearnerGroup("west/b", 2, link, 1.0))
    other = LearnerGroup("west/c", 1, link, 3.0, tokens_per_step=6.0)
    first, second = transits(world(*alike, other), 1.0)
    assert (first.groups, second.groups) == (alike, (other,))
    assert (first.name, first.learners, first.tokens_per_second) == ("west/a", 3, 3.0)
    assert (second.name, second.learners, second.tokens_per_second) == ("west/c", 1, 2.0)
    assert (first.answers, second.answers) == ((2.0, 3.0), (2.0, 3.0))
    assert (first.deliveries, second.deliveries) == ((0.5, 0.5), (1.5, 1.5))


@pytest.mark.parametrize(
    "change", [{"tokens_per_step": 2.0}, {"step_seconds": 2.0}, {"link": Link("east", math.inf, math.inf, 1.0)}]
)
def test_groups_that_differ_go_ways_of_their_own(change: dict[str, object]) -> None:
    one = group("west")
    other = replace(group("east"), **change)  # type: ignore[arg-type]
    assert len(transits(world(one, group("east")), 1.0)) == 1
    assert len(transits(world(one, other), 1.0)) == 2


def way(
    name: str, answers: tuple[float, ...], deliveries: tuple[float, ...], *, learners: int = 1, far: float = 0.0
) -> Transit:
    return Transit((group(name, learners=learners, far=far),), answers, deliveries)


NEAR = way("near", (1.0, 1.0), (0.5, 0.5), learners=2)
FAR = way("far", (5.0, 4.0), (3.0, 2.0), learners=3, far=2.0)
BOTH = Course((NEAR, FAR), ((1, 1), (2, 4)), 1.0, 0.25)


def test_a_round_waits_for_its_last_answer_and_never_less_than_nothing() -> None:
    assert (BOTH.lateness(0), BOTH.lateness(1)) == ((0.0, 0.0), (3.0, 0.0))
    assert BOTH.waits == (3.0, 0.0)
    early = replace(BOTH, lead_steps=((2, 2), (6, 6)))
    assert (early.lateness(0), early.waits) == ((-1.0, -1.0), (0.0, 0.0))
    slow = replace(BOTH, step_seconds=0.5)
    assert (slow.lateness(1), slow.waits) == ((4.0, 2.0), (4.0, 2.0))


@pytest.mark.parametrize(
    ("quorum", "seconds"),
    # The near ones train on it half a second after the merge, the far ones 3 s and 2 s, and 1 s until it is known.
    [(1, (3.75, 0.75)), (2, (3.75, 0.75)), (3, (7.25, 3.25)), (5, (7.25, 3.25)), (6, (7.25, 3.25))],
)
def test_a_round_ends_when_the_quorum_trains_on_it(quorum: int, seconds: tuple[float, ...]) -> None:
    assert BOTH.rounds(quorum) == seconds


@pytest.mark.parametrize(
    ("place", "seconds"),
    # From the request: the lead less half of the round trip, the wait, the merge and the way back.
    [(0, (1 + 3 + 0.25 + 0.5, 1 + 0.25 + 0.5)), (1, (2 - 1 + 3 + 0.25 + 3, 4 - 1 + 0.25 + 2))],
)
def test_what_is_trained_in_vain_is_trained_from_the_ask_on(place: int, seconds: tuple[float, ...]) -> None:
    assert BOTH.lost_seconds(place) == seconds


def test_who_is_told_after_the_launch_loses_nothing_before_the_merge() -> None:
    alone = Course((way("far", (0.0,), (1.0,), far=4.0),), ((0,),), 1.0, 0.25)
    assert alone.lost_seconds(0) == (1.25,)


@pytest.mark.parametrize(("interval", "lead_steps"), [(12, (3, 4)), (6, (3, 3)), (7, (3, 3)), (2, (1, 1))])
def test_leads_are_no_longer_than_half_an_interval(interval: int, lead_steps: tuple[int, ...]) -> None:
    ways = (way("far", (3.0, 4.0), (0.5, 0.5)), way("near", (0.0, 0.0), (0.5, 0.5)))
    found = course(ways, replace(world(interval=interval), merge_seconds=0.25), 1.0)
    assert found == Course(ways, (lead_steps, (0, 0)), 1.0, 0.25)


def late(seconds: float, *, learners: int = 1) -> Transit:
    return way(f"late{seconds}", (seconds,), (0.5,), learners=learners)


@pytest.mark.parametrize(
    ("ways", "quorum", "overlap", "waited_for"),
    [
        ((), 1, 2, ()),
        ((late(9.0),), 1, 2, (9.0,)),  # the quorum is waited for however long
        ((late(0.0), late(2.0, learners=2)), 1, 2, (0.0, 2.0)),
        ((late(0.0), late(2.5, learners=3)), 1, 2, (0.0,)),  # after the overlap
        ((late(0.0), late(2.0, learners=2)), 1, 1, (0.0,)),
        ((late(0.0), late(2.0)), 2, 0, (0.0, 2.0)),
        ((late(0.0), late(2.0), late(3.0)), 2, 0, (0.0, 2.0)),
        ((late(0.0), late(2.0), late(2.0, learners=2)), 2, 0, (0.0, 2.0, 2.0)),  # no later than the quorum
        ((late(2.0), late(0.0)), 1, 0, (0.0,)),
        # An answer adds its learners' four steps of an interval; a second of waiting costs a step of every learner.
        ((late(0.0), late(1.5)), 1, 9, (0.0, 1.5)),
        ((late(0.0), late(2.0)), 1, 9, (0.0,)),
        ((late(0.0), late(2.0, learners=2)), 1, 9, (0.0, 2.0)),
    ],
)
def test_a_round_waits_for_the_quorum_and_for_answers_that_are_worth_it(
    ways: tuple[Transit, ...], quorum: int, overlap: int, waited_for: tuple[float, ...]
) -> None:
    job = world()
    job = replace(job, exchange=replace(job.exchange, quorum=quorum))
    whole = Course(ways, ((0,),) * len(ways), 1.0, 0.0)
    assert tuple(one.answers[0] for one in in_time(whole, job, overlap)) == waited_for


def test_an_answer_brings_what_its_learner_trains_in_an_interval() -> None:
    # Eight seconds of one learner, for three of two.
    whole = Course((late(0.0), late(3.0)), ((0,), (0,)), 2.0, 0.0)
    assert in_time(whole, world(), 2) == whole.transits
