"""Faults of a session, for any job and seed: the same again, in its time, only for what was named, at the rate."""

from hypothesis import given
from hypothesis import strategies as st

from diloco.local.chaos.schedule import Rate, Request, Unit, plan_faults, units
from diloco.local.chaos.spec import FaultKind
from diloco.local.targets import learners_named

NAMES = st.sampled_from(("a", "b", "c"))
JOBS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3)), min_size=1, max_size=12, unique=True).map(
    lambda found: tuple(f"{region}/{pool}/{index}" for region, pool, index in found)
)
SEEDS = st.integers(0, 2**31 - 1)
UNITS = st.sampled_from((Unit.LEARNER, Unit.POOL, Unit.REGION, Unit.SYNCER))


@given(job=JOBS, seed=SEEDS, unit=UNITS, per_hour=st.floats(1.0, 600.0), seconds=st.floats(1.0, 1800.0))
def test_a_seed_gives_the_same_faults_within_the_session(
    job: tuple[str, ...], seed: int, unit: Unit, per_hour: float, seconds: float
) -> None:
    request = Request(seconds, seed, rates=(Rate(FaultKind.KILL, unit, per_hour),))
    faults = plan_faults(request, job)
    assert faults == plan_faults(request, job)
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)
    assert all(0 < fault.at_seconds <= seconds for fault in faults)
    assert {(fault.target, fault.victims) for fault in faults} <= set(units(unit, job, {}).items())


@given(job=JOBS, seed=SEEDS, choice=st.data())
def test_only_what_was_named_is_hit(job: tuple[str, ...], seed: int, choice: st.DataObject) -> None:
    learner = choice.draw(st.sampled_from(job))
    parts = learner.split("/")
    only = "/".join(parts[: choice.draw(st.integers(1, 3))])
    rates = tuple(Rate(FaultKind.KILL, unit, 600.0) for unit in (Unit.LEARNER, Unit.POOL, Unit.REGION))
    faults = plan_faults(Request(600.0, seed, rates=rates, only=(only,)), job)
    assert {victim for fault in faults for victim in fault.victims} <= set(learners_named(only, job))


@given(seed=SEEDS)
def test_rates_are_right_over_many_units(seed: int) -> None:
    learners = tuple(f"a/b/{index}" for index in range(500))
    faults = plan_faults(Request(3600.0, seed, rates=(Rate(FaultKind.KILL, Unit.LEARNER, 8.0),)), learners)
    # 4000 are expected, with a standard deviation of 63.2: eight of these are exceeded once in 10**15 seeds.
    assert abs(len(faults) - 4000) < 8 * 63.3
