from collections.abc import Collection

from diloco.local.chaos.schedule import ChaosPlan, RunState
from diloco.local.chaos.spec import parse_faults

LEARNERS = ("east/a/0", "west/b/0", "west/b/1")
ALL = frozenset((*LEARNERS, "syncer"))


def plan(*texts: str, seed: int = 0, injected: Collection[str] = ()) -> ChaosPlan:
    return ChaosPlan(parse_faults(texts, LEARNERS), seed=seed, injected=injected)


def sight(
    now: float = 0.0, *, syncer_step: int = 0, steps: dict[str, int] | None = None, up: Collection[str] = ALL
) -> RunState:
    return RunState(now, syncer_step, steps or {}, up)


def test_a_kill_by_step_strikes_once_when_the_learner_has_come_that_far() -> None:
    chaos = plan("kill:west/b/0@step=10")
    assert chaos.due(sight(steps={"west/b/0": 9})) == []
    assert [strike.target for strike in chaos.due(sight(steps={"west/b/0": 11}))] == ["west/b/0"]
    assert chaos.due(sight(steps={"west/b/0": 10})) == []


def test_a_victim_that_is_down_is_struck_when_it_is_up_again() -> None:
    chaos = plan("kill:west/b/0@step=10")
    assert chaos.due(sight(steps={"west/b/0": 12}, up={"east/a/0"})) == []
    assert len(chaos.due(sight(steps={"west/b/0": 12}))) == 1


def test_cuts_and_the_syncer_go_by_the_syncers_step() -> None:
    chaos = plan("cut:west@step=5,seconds=9", "kill:syncer@step=6")
    assert [s.target for s in chaos.due(sight(syncer_step=5))] == ["west"]
    assert [s.target for s in chaos.due(sight(syncer_step=6))] == ["syncer"]


def test_what_struck_before_a_resume_does_not_strike_again() -> None:
    first = plan("kill:west@step=10")
    keys = {strike.key for strike in first.due(sight(steps={"west/b/0": 10}))}
    second = plan("kill:west@step=10", injected=keys)
    assert [s.target for s in second.due(sight(steps={"west/b/0": 20, "west/b/1": 20}))] == ["west/b/1"]


def strikes_over(chaos: ChaosPlan, seconds: int, up: Collection[str] = ALL) -> list[tuple[int, str]]:
    return [(now, strike.target) for now in range(seconds) for strike in chaos.due(sight(float(now), up=up))]


def test_a_rate_strikes_about_so_often_an_hour_of_each_victim() -> None:
    injected = strikes_over(plan("kill:*@rate=60"), 3600)
    by_victim = {victim: sum(who == victim for _, who in injected) for victim in LEARNERS}
    # Poisson with a mean of 60: four standard deviations are 31.
    assert all(29 < count < 91 for count in by_victim.values())
    assert len({tuple(at for at, who in injected if who == victim) for victim in LEARNERS}) == 3
    assert strikes_over(plan("kill:*@rate=60"), 3600) == injected
    assert strikes_over(plan("kill:*@rate=60", seed=2), 3600) != injected
    assert strikes_over(plan("kill:west/b/0@rate=60"), 3600, up={"east/a/0"}) == [], "only while the victim is up"
