"""Whatever has happened, the job goes on once learners do as they should, also beside one that diverges.

`test_engine_states` checks every decision on the way.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import LeftOut
from tests.support.engine_moves import FRAGMENTS, KINDS, LEARNERS, Move, moves, play
from tests.support.engine_script import Script, name, started
from tests.support.examples import examples


def drain(script: Script, bad: str = "") -> None:
    """Let every learner answer every request, and every merge end, until there is nothing left to do.

    Merges leave out what ``bad`` has sent.
    """
    while True:
        for learner, fragment in list(script.asks):
            ask = script.asks.pop((learner, fragment))
            if ask.incarnation == script.incarnations[learner]:
                script.asks[learner, fragment] = ask
                script.push(learner, fragment, steps=1)
                if script.asks[learner, fragment] is ask:
                    del script.asks[learner, fragment]
        versions = script.engine.versions
        ordered = [merge for merge in script.all(Merge) if merge.version > versions[merge.fragment]]
        if not ordered:
            return
        for merge in ordered:
            there = bad in {member.learner for member in merge.members}
            script.merge_done(merge, left_out=(LeftOut(bad, "it is broken", broken=True),) if there else ())


@pytest.mark.parametrize("quorum", range(1, LEARNERS + 1))
@pytest.mark.parametrize("seed", range(40))
def test_after_a_long_game_the_job_goes_on(seed: int, quorum: int) -> None:
    random = Random(seed)
    script = started(LEARNERS, quorum=quorum)
    count = random.choice([30, 100, 400])
    kinds = [random.choice(KINDS) for _ in range(count)]
    play(script, [Move(kind, random.randrange(LEARNERS), random.randrange(FRAGMENTS)) for kind in kinds])
    for learner in range(LEARNERS):
        script.join(learner, f"at last {learner}")
        script.ready(learner)
    before = script.engine.versions
    for _ in range(60):
        drain(script)
        script.wait(1.0)
        for learner in range(LEARNERS):
            script.step(learner)
    drain(script)
    assert min(after - early for after, early in zip(script.engine.versions, before, strict=True)) >= 5


@given(moves(), st.integers(1, LEARNERS), st.integers(0, LEARNERS - 1))
@settings(max_examples=examples(100))
def test_with_a_learner_that_always_diverges_the_others_merge_on(chosen: list[Move], quorum: int, bad: int) -> None:
    script = started(LEARNERS, quorum=quorum, quarantine_seconds=1000.0)
    play(script, chosen)
    before = script.view
    for turn in range(60):
        for index in range(LEARNERS):
            if script.learner(index).state == "Absent":
                script.join(index, f"turn {turn} of {index}")
                script.ready(index)
        drain(script, bad=name(bad))
        script.wait(1.0)
        for learner in range(LEARNERS):
            script.step(learner)
    after = script.view
    assert after.learners[bad].state == "Quarantined"
    assert {after.learners[index].state for index in range(LEARNERS) if index != bad} == {"Training"}
    for index in range(LEARNERS):
        merged = after.learners[index].merged_tokens - before.learners[index].merged_tokens
        assert (merged > 0) == (index != bad)
