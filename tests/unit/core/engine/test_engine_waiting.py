"""Membership by readiness: requests ahead, waits, and what a slow, dying or hostile learner costs."""

from typing import Any

from diloco.core.engine.actions import AskFragment, Merge, Note
from diloco.core.engine.events import FragmentLate
from tests.support.engine_script import Script, members, name, of, only, started

INTERVAL = 12
LARGE = 7 / (7 + INTERVAL - 1)
ONE_LARGE = (LARGE, *((1 - LARGE) / (INTERVAL - 1),) * (INTERVAL - 1))
"""Shares of the model: the first fragment is seven times as large as each other."""


def apart(learners: int, **changes: Any) -> Script:
    """Learners of a job in which each step makes a fragment of twelve due, and no grace window is kept."""
    return started(learners, fragments=INTERVAL, grace_safety=0.0, **changes)


def turn(script: Script, answers: dict[int, float]) -> list[Merge]:
    """Every learner makes a step of a second; each then answers its requests, after its own time.

    ``answers``: seconds by learner, for a fragment of mean size.
    """
    asks = [ask for index in answers for ask in of(script.step(index), AskFragment)]
    learners = [int(ask.learner[-1]) for ask in asks]
    due = [
        (script.now + answers[index] * script.options.sizes[ask.fragment], index, ask.fragment)
        for index, ask in zip(learners, asks, strict=True)
    ]
    end, seen = script.now + 1.0, len(script.log)
    for at, index, fragment in sorted(due):
        if at < end:
            script.wait(max(0.0, at - script.now))
            if script.incarnations[index] == script.asks[index, fragment].incarnation:
                script.push(index, fragment, steps=INTERVAL)
    script.wait(max(0.0, end - script.now))
    merges = [action for _, action in script.log[seen:] if isinstance(action, Merge)]
    for merge in merges:
        script.merge_done(merge)
        for index in answers:  # also those that are not members
            script.applied(index, merge.fragment, merge.version)
    return merges


def warmed_up(answers: dict[int, float], turns: int = 2 * INTERVAL, **changes: Any) -> Script:
    """Let every learner's time to answer be measured."""
    script = apart(len(answers), **changes)
    for _ in range(turns):
        turn(script, answers)
    return script


def due_fragment(script: Script) -> int:
    """The first two learners make a step; returns the fragment that it makes due."""
    asks = [*of(script.step(1), AskFragment), *of(script.step(0), AskFragment)]
    return next(ask.fragment for ask in asks if ask.learner == name(0))


def reasons(script: Script, subject: str) -> list[str]:
    return [note.reason for note in script.all(Note) if note.kind == subject]


def test_a_stalled_transfer_delays_one_round_at_most_to_its_deadline() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    stalled: list[tuple[float, Merge]] = []
    for _ in range(4):
        fragment, began = due_fragment(script), script.now
        script.wait(0.01)
        script.push(0, fragment, steps=INTERVAL)
        script.wait(began + 1.0 - script.now)
        for at, action in script.log:
            if isinstance(action, Merge) and at >= began and members([action]) == [[name(0)]]:
                stalled.append((at - began, action))
                script.merge_done(action)
    delays = [delay for delay, _ in stalled]
    assert 0.4 < delays[0] < 0.8
    assert all(delay < 0.1 for delay in delays[1:])
    assert any("has not answered since it was last waited for" in reason for reason in reasons(script, "RoundWaits"))


def test_a_learner_that_missed_its_deadline_is_awaited_after_a_late_answer() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    fragment = due_fragment(script)
    script.wait(0.01)
    script.push(0, fragment)
    script.merge_done(only(script.wait(1.0), Merge))
    assert script.learner(1).missed
    ask = script.asks[1, fragment]
    script.do(FragmentLate(name(1), ask.incarnation, fragment, ask.version, ask.attempt + 1))  # never requested
    assert script.learner(1).missed
    script.do(FragmentLate(name(1), ask.incarnation, fragment, ask.version, ask.attempt))
    assert not script.learner(1).missed


def test_a_far_learner_is_asked_ahead_of_the_launch() -> None:
    answers = {0: 0.01, 1: 0.01, 2: 0.01, 3: 0.9}
    script = warmed_up(answers)
    asks = of(script.step(0), AskFragment)
    ahead = [ask for ask in asks if "before syncer step" in ask.reason]
    assert [ask.learner for ask in ahead] == [name(3)]
    assert "its answer takes 0.897 s" in ahead[0].reason


def test_what_comes_ahead_of_the_launch_is_merged_with_the_others() -> None:
    answers = {0: 0.01, 1: 0.01, 2: 0.01, 3: 0.9}
    script = warmed_up(answers)
    merged = [merge for _ in range(INTERVAL) for merge in turn(script, answers)]
    assert sum(len(merge.members) for merge in merged) / len(merged) > 3.7


def test_a_large_fragment_is_waited_for_as_long_as_its_size_takes() -> None:
    answers = {0: 0.01, 1: 0.12}  # the large fragment takes half a step
    script = warmed_up(answers, 3 * INTERVAL, shares=ONE_LARGE)
    merged = [merge for _ in range(2 * INTERVAL) for merge in turn(script, answers)]
    assert [len(merge.members) for merge in merged if merge.fragment == 0] == [2, 2]


def test_a_later_request_that_is_missed_ends_no_wait_for_an_earlier_one() -> None:
    script = warmed_up({0: 0.01, 1: 0.12}, 3 * INTERVAL, shares=ONE_LARGE)
    fragments = [due_fragment(script), due_fragment(script)]
    assert fragments == [0, 1]
    script.wait(0.01)
    script.push(0, 1, steps=INTERVAL)
    (alone,) = of(script.wait(0.3), Merge)  # the small fragment is behind the large one on the link
    assert members([alone]) == [[name(0)]]
    script.push(0, 0, steps=INTERVAL)
    script.wait(0.25)
    (merge,) = of(script.push(1, 0, steps=INTERVAL), Merge)
    assert members([merge]) == [[name(0), name(1)]]


def test_the_wait_for_a_large_fragment_has_room_for_as_large_a_deviation() -> None:
    script = apart(2, shares=ONE_LARGE)
    for number in range(3 * INTERVAL):
        turn(script, {0: 0.01, 1: 0.08 + 0.08 * (number % 2)})
    assert due_fragment(script) == 0
    script.wait(0.01)
    script.push(0, 0, steps=INTERVAL)
    script.wait(0.64)  # usually 0.37 s, of the others by turns 0.05 s and 0.11 s
    (merge,) = of(script.push(1, 0, steps=INTERVAL), Merge)
    assert len(merge.members) == 2


def test_a_silent_learner_costs_others_one_wait_a_fragment_in_flight() -> None:
    script = warmed_up({0: 0.01, 1: 0.01, 2: 0.01})
    waits = len(reasons(script, "RoundWaits"))
    for _ in range(INTERVAL):
        turn(script, {0: 0.01, 1: 0.01, 2: 100.0})
    awaited = [reason for reason in reasons(script, "RoundWaits")[waits:] if "waits for here/pool/2" in reason]
    assert len(awaited) <= 4
