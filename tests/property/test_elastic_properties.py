"""Whose time counts in an elastic pool, whatever happens in whatever order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.engine.events import LearnersPlanned, PoolMinimum
from tests.support.engine_script import POOL, Script, name, options
from tests.support.examples import examples

LEARNERS = 5
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["join", "again", "leave", "leave cleanly", "wait", "plan"]),
        st.integers(0, LEARNERS - 1),
        st.integers(0, LEARNERS),
    ),
    max_size=60,
)
Move = tuple[str, int, int]


def minimums(learners: int, minimum: int) -> tuple[PoolMinimum, ...]:
    return (PoolMinimum("here/pool", minimum),) if minimum < learners else ()


def counting(script: Script) -> set[str]:
    """The learners whose allotted time goes on."""
    now, later = (
        {one.id: one.allotted_seconds for one in script.engine.view(script.now + seconds).learners}
        for seconds in (0, 1)
    )
    return {learner for learner in now if later[learner] > now[learner]}


def check(script: Script, planned: int, minimum: int, joined: set[str]) -> None:
    view = script.view
    present = {one.id for one in view.learners if one.state not in ("Absent", "GivenUp")}
    counted = counting(script)
    assert present <= counted
    awaited = {name(index) for index in range(planned)} & joined - present
    assert counted - present <= awaited
    lacking = max(0, minimum - len(present)) if minimum < planned else len(awaited)
    assert len(counted - present) == min(lacking, len(awaited))


@given(MOVES, st.integers(0, LEARNERS), st.sampled_from([None, 2]))
@settings(max_examples=examples(200))
def test_absences_count_up_to_the_minimum_and_no_further(
    moves: list[Move], minimum: int, max_restarts: int | None
) -> None:
    script = Script(options(LEARNERS, pool_minimums=minimums(LEARNERS, minimum), max_restarts=max_restarts))
    planned, joined, processes = LEARNERS, set[str](), 0
    script.start(0)
    joined.add(name(0))
    for move, learner, number in moves:
        match move:
            case "join" | "again":
                processes += move == "again"
                script.join(learner, f"{learner}-{processes}")
                joined.add(name(learner))
            case "leave" | "leave cleanly" if learner in script.incarnations:
                script.leave(learner, clean=move != "leave")
            case "wait":
                script.wait(float(number))
            case "plan":
                planned, minimum = learner + 1, min(number, learner + 1)
                ids = tuple(name(index) for index in range(planned))
                script.do(LearnersPlanned(ids, (POOL,), minimums(planned, minimum)))
            case _:
                pass
        check(script, planned, minimum, joined)
