"""What a learner has received determines whether it has something to send, and how much."""

import pytest

from diloco.core.engine.actions import Merge, Note
from tests.support.engine_script import Script, name, of, only, started


def merged_once(*, answer_seconds: float = 0.0) -> Script:
    """One fragment, due every ten steps; both learners have sent it, and only the first has received the result."""
    script = started(2, fragments=1, interval=10, max_staleness_steps=40, grace_safety=0.0)
    script.step(0, 10)
    script.step(1, 10)
    script.push(0, 0)
    script.wait(answer_seconds)
    script.merge_done(only(script.push(1, 0), Merge), applied=False)
    script.applied(0, 0, 1)
    return script


@pytest.mark.parametrize(
    ("events", "waited_for"),
    [
        (["steps"], False),  # its outer gradient would include the one that it has already sent
        (["received"], False),
        (["received", "steps"], True),
        (["steps", "received", "steps"], True),
        (["received", "steps", "received"], True),  # reported twice, received once
        (["steps", "received"], False),
    ],
)
def test_a_round_waits_for_whoever_has_made_a_step_on_the_result(events: list[str], *, waited_for: bool) -> None:
    script = merged_once()
    for event in events:
        if event == "steps":
            script.step(1, 3)
        else:
            script.applied(1, 0, 1)
    script.step(0, 10)
    actions = script.push(0, 0)
    merged = [[member.learner for member in merge.members] for merge in of(actions, Merge)]
    assert merged == ([] if waited_for else [[name(0)]])
    # There is nothing to decide about a learner with nothing to send.
    (waits,) = [note.reason for note in of(actions, Note) if note.kind == "RoundWaits"]
    assert (name(1) in waits) is waited_for


@pytest.mark.parametrize(("steps", "waited_for"), [(1, False), (4, True)])
def test_a_wait_is_worth_what_was_trained_since_the_result_came(steps: int, *, waited_for: bool) -> None:
    script = merged_once(answer_seconds=1.0)
    script.step(1, 5)
    script.applied(1, 0, 1)
    script.step(1, steps)
    script.step(0, 10)
    actions = script.push(0, 0)
    # It takes a second to answer, in which both train 100 tokens; it has trained 100 tokens in each step.
    assert bool(of(actions, Merge)) is not waited_for
    reason = of(actions, Note)[0].reason
    assert ("waits for here/pool/1" in reason) is waited_for
    assert ("here/pool/1 (waiting costs the others more than its answer adds)" in reason) is not waited_for


def test_how_long_merges_take_is_known_from_those_that_were_made() -> None:
    script = merged_once()
    assert script.view.merge_seconds == 0.01
