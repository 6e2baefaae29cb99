"""Faults of a session, for any job and seed: the same again, in its time, only for what was named, at the rate."""

from hypothesis import given
from hypothesis import strategies as st

from diloco.local.chaos.schedule import plan_faults
from diloco.local.chaos.spec import LOCAL, parse_faults
from diloco.local.targets import learners_named

NAMES = st.sampled_from(("a", "b", "c"))
JOBS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3)), min_size=1, max_size=12, unique=True).map(
    lambda found: tuple(f"{region}/{pool}/{index}" for region, pool, index in found)
)
SEEDS = st.integers(0, 2**31 - 1)
UNITS = st.sampled_from(("learner", "pool", "region"))


@given(job=JOBS, seed=SEEDS, unit=UNITS, per_hour=st.floats(1.0, 600.0), seconds=st.floats(1.0, 1800.0))
def test_a_seed_gives_the_same_faults_within_the_session(
    job: tuple[str, ...], seed: int, unit: str, per_hour: float, seconds: float
) -> None:
    asked = parse_faults((f"kill:*@rate={per_hour},by={unit}",), job, LOCAL)
    faults = plan_faults(asked, seconds, seed)
    assert faults == plan_faults(asked, seconds, seed)
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)
    assert all(0 < fault.at_seconds <= seconds for fault in faults)
    assert all(fault.victims == learners_named(fault.target, job) for fault in faults)


@given(job=JOBS, seed=SEEDS, unit=UNITS, choice=st.data())
def test_only_what_was_named_is_hit(job: tuple[str, ...], seed: int, unit: str, choice: st.DataObject) -> None:
    learner = choice.draw(st.sampled_from(job))
    named = "/".join(learner.split("/")[: choice.draw(st.integers(1, 3))])
    faults = plan_faults(parse_faults((f"kill:{named}@rate=600,by={unit}",), job, LOCAL), 600.0, seed)
    assert {victim for fault in faults for victim in fault.victims} <= set(learners_named(named, job))


@given(seed=SEEDS)
def test_rates_are_right_over_many_units(seed: int) -> None:
    learners = tuple(f"a/b/{index}" for index in range(500))
    faults = plan_faults(parse_faults(("kill:*@rate=8",), learners, LOCAL), 3600.0, seed)
    # 4000 are expected, with a standard deviation of 63.2: eight of these are exceeded once in 10**15 seeds.
    assert abs(len(faults) - 4000) < 8 * 63.3
