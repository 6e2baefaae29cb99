"""When a syncer step is launched, how many are under way, and how soon requests are repeated."""

import pytest

from diloco.core.engine.actions import AskFragment, Merge, Note, SetTimer
from tests.support.engine_script import of, only, started, stepped


@pytest.mark.parametrize(("quorum_seconds", "patience_seconds"), [(0.0, 10.0), (2.5, 10.0), (3.0, 12.0), (5.0, 20.0)])
def test_asks_are_repeated_after_a_lease_or_four_times_a_quorums_time(
    quorum_seconds: float, patience_seconds: float
) -> None:
    script = stepped(2, quorum=2, grace_safety=0.0)
    script.push(0, 0)
    script.wait(quorum_seconds)
    script.merge_done(only(script.push(1, 0), Merge))
    script.step(0)
    timer = only(script.step(1), SetTimer)
    assert timer.name == "round/1"
    assert timer.at - script.now == pytest.approx(patience_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "held_seconds"),
    [(5.0, 50.0), (0.5, 10.0)],  # ten steps, or a lease
)
def test_what_nobody_confirms_is_in_flight_for_ten_steps_or_a_lease(step_seconds: float, held_seconds: float) -> None:
    script = started(1, overlap=1)
    script.step(0, seconds=step_seconds)
    script.merge_done(only(script.push(0, 0), Merge), applied=False)
    script.now += held_seconds - 0.25
    assert not of(script.step(0, seconds=step_seconds), AskFragment)
    script.now += 0.25
    assert of(script.step(0, seconds=step_seconds), AskFragment)


@pytest.mark.parametrize(("steps", "allowed"), [(2, [1, 1, 2]), (1, [1, 1, 1])])
def test_one_more_is_let_in_where_a_launch_had_to_wait_for_a_place(steps: int, allowed: list[int]) -> None:
    script = started(1, overlap=1, overlap_limit=3)
    seen = []
    for fragment in range(3):
        for _ in range(steps):  # the second makes the next fragment due before this one is back
            script.step(0)
        script.now += 5.0
        script.merge_done(only(script.push(0, fragment), Merge))
        seen.append(script.view.fragments_allowed)
    assert seen == allowed


def test_a_launch_says_which_step_is_due_and_for_whom() -> None:
    script = started(2, interval=8)
    assert not of(script.step(0), Note)
    opened = [note for note in of(script.step(0), Note) if note.kind == "RoundOpened"]
    assert [(note.fragment, note.reason) for note in opened] == [
        (0, "syncer step 1, due at inner step 2: 1 learner(s) have reached it")
    ]


def test_a_round_whose_answers_came_ahead_of_its_launch_closes_with_it() -> None:
    script = started(1, fragments=12, grace_safety=0.0)

    def turn(answer_steps: float) -> list[int]:
        """Make a step of a second, and answer the requests of some steps before; returns the closed rounds."""
        closed = of(script.step(0), Merge)
        for merge in closed:
            script.merge_done(merge)
        for ask in [ask for at, ask in script.log if isinstance(ask, AskFragment) and at == script.now - answer_steps]:
            for merge in of(script.push(0, ask.fragment, steps=12), Merge):
                script.merge_done(merge)
        script.wait(1.0)
        return [merge.fragment for merge in closed]

    for _ in range(30):
        turn(2.0)
    assert script.learner(0).lead_steps == 2
    assert turn(2.0) == []  # the answer comes right after the launch
    turn(1.0)  # two at once, from here on a step before the launch
    assert [len(turn(1.0)) for _ in range(3)] == [1, 1, 1]


def test_a_learner_that_becomes_ready_is_waited_for() -> None:
    script = started(3)
    script.step(0)
    script.push(0, 0)
    notes = of(script.step(1), Note)
    assert sum(note.kind == "RoundWaits" and "is ready now" in note.reason for note in notes) == 1
