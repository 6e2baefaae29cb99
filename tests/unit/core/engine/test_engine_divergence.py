"""A learner that diverges is reset, then quarantined, and none of that keeps the others waiting."""

from typing import Any

import pytest

from diloco.core.engine.actions import Admit, AskFragment, Discard, Fence, Merge, Note, Refusal
from diloco.core.engine.events import Cosine, FragmentDeclined, LeftOut
from diloco.core.engine.members.standing import BROKEN_MERGES, LARGE_TURNS, TRIAL_TURNS
from tests.support.engine_script import Script, members, name, of, only, options

FRAGMENTS = 4
QUARANTINE_SECONDS = 50.0
WHY = "it holds values that are not finite"


class Scene(Script):
    """Learners that train; ``bad`` ones send what merges leave out."""

    def __init__(self, learners: int = 3, saved: dict[str, Any] | None = None, **changes: Any) -> None:
        chosen = options(learners, fragments=FRAGMENTS, **({"quarantine_seconds": QUARANTINE_SECONDS} | changes))
        super().__init__(chosen, epoch=1 if saved is None else 2, saved=saved)
        self.there = range(learners)
        self.cosines: dict[str, float] = {}
        """With the others, by learner."""
        if saved is None:
            self.start(*self.there)

    def merge(self, *bad: int, broken: bool = True) -> list[Any]:
        """All learners that may make a step, and answer; the fragment is merged without the bad ones."""
        before = len(self.log)
        self.wait(1.0)
        for index in self.there:
            if self.learner(index).state not in {"Absent", "Loading"}:
                self.step(index)
        asked = [(index, p) for index, p in self.asks if self.asks[index, p].incarnation == self.incarnations[index]]
        for index, fragment in sorted(asked):
            if self.learner(index).state == "Training":
                self.push(index, fragment)
            self.asks.pop((index, fragment), None)
        for merge in [action for _, action in self.log[before:] if isinstance(action, Merge)]:
            out = tuple(LeftOut(name(index), WHY, broken) for index in bad if name(index) in members([merge])[0])
            cosines = tuple(Cosine(one, cosine) for one, cosine in self.cosines.items())
            self.merge_done(merge, applied=False, left_out=out, cosines=cosines)
            for index in self.there:
                if self.learner(index).state not in {"Absent", "Loading"}:
                    self.applied(index, merge.fragment, merge.version)
        return [action for _, action in self.log[before:]]

    def back(self, index: int) -> Admit:
        """A learner joins again with everything that it holds, and loads what it is told to."""
        admitted = only(self.join(index, versions=self.engine.versions), Admit)
        self.ready(index)
        return admitted

    def diverge(self, index: int, *, broken: bool = True, turns: int = BROKEN_MERGES) -> list[Any]:
        actions: list[Any] = []
        for _ in range(turns):
            actions += self.merge(index, broken=broken)
        return actions


def quarantined(learners: int = 3, **changes: Any) -> Scene:
    """The second learner has diverged, and again after its reset."""
    scene = Scene(learners, **changes)
    scene.diverge(1)
    scene.back(1)
    scene.diverge(1)
    assert scene.learner(1).state == "Quarantined"
    return scene


def test_a_learner_that_diverges_must_load_the_model_and_start_over() -> None:
    scene = Scene()
    fence = only(scene.diverge(1), Fence)
    assert (fence.learner, fence.refusal) == (name(1), Refusal.RESET)
    assert WHY in fence.reason
    admitted = scene.back(1)
    assert (admitted.reset, admitted.load) == (True, tuple(range(FRAGMENTS)))
    assert scene.learner(1).resets == 1
    assert WHY in scene.learner(1).diverged_reason
    for _ in range(TRIAL_TURNS * FRAGMENTS + 1):
        scene.merge()
    assert (scene.learner(1).state, scene.learner(1).diverged_reason) == ("Training", "")
    assert not scene.back(1).reset


def test_a_reset_is_due_until_the_model_is_loaded() -> None:
    scene = Scene()
    scene.diverge(1)
    for _ in range(2):
        assert only(scene.join(1, versions=scene.engine.versions), Admit).reset
        scene.leave(1)
    assert only(scene.join(1, "another process"), Admit).reset


def test_a_learner_that_cannot_encode_its_gradients_has_diverged() -> None:
    scene = Scene(2, quorum=2)
    fences: list[Fence] = []
    for index in scene.there:
        scene.step(index)
    scene.push(0, 0)
    for _ in range(BROKEN_MERGES):
        assert fences == []
        ask = scene.asks[1, 0]  # again after each step, as the quorum needs it
        told = FragmentDeclined(name(1), ask.incarnation, 0, ask.version, ask.attempt, broken=True)
        fences += of(scene.do(told), Fence)
        fences += of(scene.step(1), Fence)
    assert [(one.learner, one.refusal) for one in fences] == [(name(1), Refusal.RESET)]


def test_one_that_diverges_again_is_quarantined_and_not_asked() -> None:
    scene = quarantined()
    assert scene.learner(1).quarantine_seconds == QUARANTINE_SECONDS
    before = sum(scene.engine.versions)
    actions = [action for _ in range(8) for action in scene.merge()]
    assert {ask.learner for ask in of(actions, AskFragment)} == {name(0), name(2)}
    assert sum(scene.engine.versions) >= before + 8


def test_the_quorum_follows_a_quarantine_and_comes_back_with_the_learner() -> None:
    scene = quarantined(2, quorum=2)
    assert scene.view.quorum == 1
    assert "sync.quorum is 2" in scene.all(Note, lambda note: note.kind == "QuorumFollows")[-1].reason
    before = sum(scene.engine.versions)
    for _ in range(8):
        scene.merge()
    assert sum(scene.engine.versions) >= before + 8
    release(scene, 1)
    scene.back(1)
    assert scene.view.quorum == 2


def release(scene: Scene, index: int) -> Fence:
    """Let the time of a quarantine pass while everyone trains."""
    for _ in range(500):
        found = [one for one in of(scene.merge(), Fence) if one.learner == name(index)]
        if found:
            return found[0]
    raise AssertionError("it stays in quarantine")


def test_after_its_quarantine_it_starts_over() -> None:
    scene = quarantined()
    since = scene.now
    fence = release(scene, 1)
    assert (fence.refusal, fence.reason) == (Refusal.RESET, "its quarantine is over")
    assert QUARANTINE_SECONDS <= scene.now - since <= QUARANTINE_SECONDS + 2.0
    assert scene.back(1).reset


def test_a_restart_or_a_broken_link_does_not_end_a_quarantine() -> None:
    scene = quarantined()
    assert scene.rejoin(1, "another process")
    assert scene.learner(1).state == "Quarantined"
    scene.step(1)
    assert scene.learner(1).state == "Quarantined"


def test_one_that_is_away_as_its_quarantine_ends_starts_over_on_return() -> None:
    scene = quarantined()
    scene.leave(1)
    for _ in range(60):
        scene.merge()
    assert scene.learner(1).quarantine_seconds == 0.0
    assert scene.back(1).reset
    assert scene.learner(1).state == "Training"


def test_the_last_learner_that_works_is_never_quarantined() -> None:
    scene = Scene(1)
    for _ in range(4):
        assert only(scene.diverge(0), Fence).refusal is Refusal.RESET
        scene.back(0)
        assert scene.learner(0).state == "Training"


def test_of_two_that_differ_neither_is_quarantined() -> None:
    scene = Scene(2)
    for _ in range(3):
        scene.diverge(1, broken=False, turns=LARGE_TURNS * FRAGMENTS)
        scene.back(1)
        assert scene.learner(1).state == "Training"


def test_a_minority_of_the_planned_learners_quarantines_none_of_the_rest() -> None:
    scene = Scene(5)
    for _ in range(3):
        for _ in range(LARGE_TURNS * FRAGMENTS):
            scene.merge(0, 1, 2, broken=False)  # each merge has the other two only
        for index in range(3):
            scene.back(index)
    assert [scene.learner(index).state for index in scene.there] == ["Training"] * 5


def test_more_than_half_of_the_planned_learners_do() -> None:
    scene = Scene(5)
    for _ in range(2):
        scene.diverge(1, broken=False, turns=LARGE_TURNS * FRAGMENTS)
        scene.back(1)
    assert scene.learner(1).state == "Quarantined"


def test_who_points_against_the_others_is_named_and_stays() -> None:
    scene = Scene(3)
    scene.cosines = {name(0): -0.3, name(1): -0.9, name(2): 0.2}
    for _ in range(40):
        scene.merge()
    assert [scene.learner(index).against for index in scene.there] == [False, True, False]
    assert scene.learner(1).agreement == pytest.approx(-0.9)
    assert scene.learner(1).state == "Training"
    scene.cosines[name(1)] = 0.1
    scene.merge()
    assert not scene.learner(1).against
    again = Scene(saved=scene.engine.snapshot(scene.now))
    assert again.learner(1).agreement == scene.learner(1).agreement


def test_if_nobody_else_is_left_a_quarantine_ends_early() -> None:
    scene = quarantined(2, quarantine_seconds=10_000.0, startup_seconds=30.0)
    scene.leave(0)
    fences: list[Fence] = []
    for _ in range(40):
        fences += of(scene.wait(1.0), Fence)
        scene.alive(1)
    assert [(one.learner, one.refusal) for one in fences] == [(name(1), Refusal.RESET)]
    assert scene.back(1).reset
    assert scene.learner(1).state == "Training"


def test_what_it_has_sent_for_open_rounds_is_dropped() -> None:
    scene = Scene(3, quorum=3)
    for index in scene.there:
        scene.step(index, 2)
    scene.push(1, 1)  # of the next round, which waits for the others
    for index in scene.there:
        scene.push(index, 0)
    merge = scene.all(Merge)[-1]
    scene.state.learners[name(1)].standing.broken_in_a_row = BROKEN_MERGES - 1
    out = (LeftOut(name(1), WHY, broken=True),)
    actions = scene.merge_done(merge, applied=False, left_out=out)
    assert [(one.learner, one.fragment) for one in of(actions, Discard)] == [(name(1), 1)]
    assert of(actions, Fence)[0].learner == name(1)


def test_what_it_had_sent_before_its_reset_counts_no_more() -> None:
    scene = Scene(2)
    for index in scene.there:
        scene.step(index, 2)
    for fragment in (0, 1):
        for index in scene.there:
            scene.push(index, fragment)
    scene.state.learners[name(1)].standing.broken_in_a_row = BROKEN_MERGES - 1
    out = (LeftOut(name(1), WHY, broken=True),)
    resets = [len(of(scene.merge_done(merge, applied=False, left_out=out), Fence)) for merge in scene.all(Merge)]
    assert resets == [1, 0]


def test_a_quarantine_outlasts_a_restart_of_the_syncer() -> None:
    scene = quarantined()
    for _ in range(20):
        scene.merge()
    left = scene.learner(1).quarantine_seconds
    assert left is not None
    assert 0 < left < QUARANTINE_SECONDS
    again = Scene(saved=scene.engine.snapshot(scene.now))
    again.now = 77_000.0
    assert again.learner(1).quarantine_seconds == left
    again.start(*again.there)
    assert (again.learner(1).state, again.learner(1).quarantine_seconds) == ("Quarantined", left)
    before = sum(again.engine.versions)
    for _ in range(4):
        again.merge()
    assert sum(again.engine.versions) >= before + 4
    assert release(again, 1).refusal is Refusal.RESET
