"""The engine's invariants hold, whatever happens in whatever order."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.actions import AskFragment, Broadcast, Discard, Merge
from diloco.core.events import LeftOut
from diloco.core.merge_weights import normalized
from tests.support.engine_script import Script, name, of, options

LEARNERS = 3
MOVES_THERE_ARE = ["step", "push", "again", "late", "decline", "leave", "rejoin", "restart", "wait", "merge", "spoil"]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(MOVES_THERE_ARE),
        st.integers(0, LEARNERS - 1),
        st.integers(0, 3),
    ),
    max_size=120,
)


def play(script: Script, moves: list[tuple[str, int, int]]) -> list[Merge]:  # noqa: C901, PLR0912 - a table of moves
    """Make the possible moves; merges end when a move says so, in any order."""
    under_way: list[Merge] = []
    done: list[Merge] = []
    processes = 0
    for move, learner, number in moves:
        before = len(script.log)
        match move:
            case "step":
                script.step(learner, number + 1)
            case "push" if (learner, number) in script.asks:
                script.push(learner, number, steps=number)
            case "again" if learner in script.pushed:
                script.do(script.pushed[learner])
            case "late" if (learner, number) in script.asks:
                script.push(learner, number, attempt=0)
            case "decline" if (learner, number) in script.asks:
                script.decline(learner, number)
            case "leave":
                script.leave(learner)
            case "rejoin":
                script.join(learner, versions=script.engine.view(script.now).versions)
                script.ready(learner)
            case "restart":
                processes += 1
                script.join(learner, f"again-{processes}")
                script.ready(learner)
            case "wait":
                script.wait(float(number * number))
            case "merge" if under_way:
                merge = under_way.pop(number % len(under_way))
                script.merge_done(merge)
                done.append(merge)
            case "spoil" if under_way:
                merge = under_way.pop(number % len(under_way))
                members = [member.learner for member in merge.members]
                script.merge_done(
                    merge, left_out=(LeftOut(members[learner % len(members)], "it is broken", broken=True),)
                )
                done.append(merge)
            case _:
                pass
        under_way += of([action for _, action in script.log[before:]], Merge)
    return done


@given(MOVES, st.integers(1, LEARNERS))
@settings(max_examples=200)
def test_promises(moves: list[tuple[str, int, int]], quorum: int) -> None:
    script = Script(options(LEARNERS, quorum=quorum))
    script.start(*range(LEARNERS))
    done = play(script, moves)
    check(script, done)


def check(script: Script, done: list[Merge]) -> None:
    """Check what holds for every sequence of moves."""
    merges = script.all(Merge)
    for merge in merges:
        learners = [member.learner for member in merge.members]
        assert learners == sorted(set(learners))
        assert abs(sum(member.weight for member in merge.members) - 1) < 1e-12
        assert all(member.steps > 0 for member in merge.members)
    # A version of a fragment is made once, and versions go up by one.
    made = [(merge.fragment, merge.version) for merge in merges]
    assert len(set(made)) == len(made)
    view = script.engine.view(script.now)
    for one in view.recoveries.latest:
        parts = (one.down, one.loading, one.stepping, one.merging, one.lost_seconds)
        assert all(part >= 0 for part in parts)
        assert one.lost_seconds + one.seconds <= view.elapsed_seconds + 1e-6
    assert all(sum(part.counts) == view.recoveries.count for part in view.recoveries.parts.values())
    assert list(view.versions) == [sum(merge.fragment == p for merge in done) for p in range(4)]
    assert view.syncer_step == len(done)
    # What counts is never dropped.
    counted = [
        (member.learner, member.incarnation, merge.fragment, merge.version, member.attempt)
        for merge in merges
        for member in merge.members
    ]
    members = set(counted)
    assert len(members) == len(counted)
    asks = [(ask.learner, ask.incarnation, ask.fragment, ask.version, ask.attempt) for ask in script.all(AskFragment)]
    assert len(set(asks)) == len(asks)
    dropped = {(d.learner, d.incarnation, d.fragment, d.version, d.attempt) for d in script.all(Discard)}
    assert not members & dropped
    # The merged share is one, and requests name existing learners.
    assert view.merged is None or view.merged >= 0
    assert {ask.learner for ask in script.all(AskFragment)} <= {name(index) for index in range(LEARNERS)}
    assert all(broadcast.version >= 1 for broadcast in script.all(Broadcast))


@pytest.mark.parametrize("quorum", range(1, LEARNERS + 1))
@pytest.mark.parametrize("seed", range(40))
def test_after_a_long_game_the_job_goes_on(seed: int, quorum: int) -> None:
    random = Random(seed)
    script = Script(options(LEARNERS, quorum=quorum))
    script.start(*range(LEARNERS))
    moves = [
        (random.choice(MOVES_THERE_ARE), random.randrange(LEARNERS), random.randrange(4))
        for _ in range(random.choice([30, 100, 400]))
    ]
    done = play(script, moves)
    check(script, done)
    for learner in range(LEARNERS):
        script.join(learner, f"at last {learner}")
        script.ready(learner)
    before = script.engine.versions
    for _ in range(60):
        done += drain(script)
        script.wait(1.0)
        for learner in range(LEARNERS):
            script.step(learner)
    done += drain(script)
    check(script, done)
    assert min(after - early for after, early in zip(script.engine.versions, before, strict=True)) >= 5


def drain(script: Script, bad: str = "") -> list[Merge]:
    """Let every learner answer every request, and every merge end, until there is nothing left to do.

    Merges leave out what ``bad`` has sent.
    """
    done: list[Merge] = []
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
            return done
        for merge in ordered:
            there = bad in {member.learner for member in merge.members}
            script.merge_done(merge, left_out=(LeftOut(bad, "it is broken", broken=True),) if there else ())
            done.append(merge)


@given(MOVES)
@settings(max_examples=50)
def test_a_snapshot_restores_to_the_same_snapshot(moves: list[tuple[str, int, int]]) -> None:
    script = Script(options(LEARNERS))
    script.start(*range(LEARNERS))
    play(script, moves)
    saved = script.engine.snapshot(script.now)
    again = Script(options(LEARNERS), epoch=2, saved=saved).engine
    restored = again.snapshot(script.now)
    changing = {"phase", "phase_reason"}
    assert {k: v for k, v in restored.items() if k not in changing} == {
        k: v for k, v in saved.items() if k not in changing
    }


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1e12), min_size=1).filter(lambda w: sum(w.values()) > 0))
def test_weights_sum_to_one(weights: dict[str, float]) -> None:
    shares = normalized(weights)
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert all(0 <= share <= 1 for share in shares.values())
    assert normalized(dict(reversed(weights.items()))) == shares


@given(MOVES, st.integers(1, LEARNERS), st.integers(0, LEARNERS - 1))
@settings(max_examples=100)
def test_with_a_learner_that_always_diverges_the_others_merge_on(
    moves: list[tuple[str, int, int]], quorum: int, bad: int
) -> None:
    script = Script(options(LEARNERS, quorum=quorum, quarantine_seconds=1000.0))
    script.start(*range(LEARNERS))
    play(script, moves)
    before = script.engine.view(script.now)
    for turn in range(60):
        for index in range(LEARNERS):
            if script.engine.view(script.now).learners[index].state == "Absent":
                script.join(index, f"turn {turn} of {index}")
                script.ready(index)
        drain(script, bad=name(bad))
        script.wait(1.0)
        for learner in range(LEARNERS):
            script.step(learner)
    after = script.engine.view(script.now)
    assert after.learners[bad].state == "Quarantined"
    assert {after.learners[index].state for index in range(LEARNERS) if index != bad} == {"Training"}
    for index in range(LEARNERS):
        merged = after.learners[index].merged_tokens - before.learners[index].merged_tokens
        assert (merged > 0) == (index != bad)
