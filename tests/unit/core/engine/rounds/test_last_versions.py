"""Which versions are averaged, and that their mean becomes the last version before the final model is evaluated."""

from diloco.core.engine.actions import Action, Broadcast, Evaluate, Finish, Merge
from diloco.core.engine.events import BudgetChanged, LeftOut
from tests.support.engine_script import Script, name, of, only, started


def begun(share: float = 0.3, *, learners: int = 1, budget: int = 1000) -> Script:
    """The learners have a model of one fragment, which is evaluated."""
    script = started(learners, fragments=1, lease_seconds=1000.0, budget_tokens=budget, average_last=share)
    script.evaluated()
    return script


def turn(script: Script, *, failed: bool = False) -> list[Action]:
    """The first learner sends 100 tokens, and they are merged unless that fails."""
    script.step(0, tokens=100)
    merge = only(script.push(0, 0, tokens=100), Merge)
    return script.merge_done(merge, left_out=(LeftOut(name(0), "it is too long", broken=False),) if failed else ())


def averaged(script: Script) -> list[int]:
    return [merge.averaged for merge in script.all(Merge)]


def test_the_last_versions_are_averaged_and_the_mean_is_evaluated() -> None:
    script = begun()
    actions = [turn(script) for _ in range(10)][-1]
    mean = only(actions, Merge)
    assert averaged(script) == [0] * 7 + [1, 2, 3, 3]
    assert (mean.members, mean.version, mean.reason) == (
        (),
        11,
        "the budget is merged: the mean of the last 3 versions",
    )
    assert not of(actions, Evaluate)
    told = script.merge_done(mean)
    assert only(told, Broadcast).reason == "version 11 is the mean of the last ones"
    assert only(told, Evaluate).versions == (11,)
    assert only(script.evaluated(), Finish).complete
    assert script.view.merged_tokens == 1000


def test_without_a_share_and_with_one_version_nothing_is_averaged() -> None:
    for share in (0.0, 0.1):
        script = begun(share)
        actions = [turn(script) for _ in range(10)][-1]
        assert max(averaged(script)) == (1 if share else 0)
        assert only(actions, Evaluate).versions == (10,)


def test_a_version_that_is_the_one_before_counts_once() -> None:
    script = begun()
    for index in range(11):
        turn(script, failed=index == 8)
    assert averaged(script) == [0] * 7 + [1, 2, 2, 3, 3]


def test_after_a_larger_budget_the_last_versions_are_others() -> None:
    script = begun()
    for _ in range(9):
        turn(script)
    script.do(BudgetChanged(2000, 10**9))
    for _ in range(11):
        turn(script)
    assert averaged(script)[7:] == [1, 2, *[0] * 5, 1, 2, 3, 4, 5, 6, 6]


def test_a_budget_that_is_raised_after_the_mean_trains_on_from_it() -> None:
    script = begun()
    mean = only([turn(script) for _ in range(10)][-1], Merge)
    script.do(BudgetChanged(2000, 10**9))
    assert not of(script.merge_done(mean), Evaluate)
    script.applied(0, 0, mean.version)
    turn(script)
    assert averaged(script)[-2:] == [3, 0]
    assert script.engine.versions == (12,)


def test_a_restarted_syncer_goes_on_with_the_mean() -> None:
    script = begun()
    for _ in range(9):
        turn(script)
    again = script.restarted()
    again.start(0)
    mean = only(turn(again), Merge)
    assert (averaged(again), mean.version) == ([3, 3], 11)
    killed = again.restarted()  # before the mean is made
    killed.start(0)
    assert only(killed.all(Merge), Merge).averaged == 3


def test_the_mean_is_made_while_no_learner_is_there() -> None:
    script = begun()
    mean = only([turn(script) for _ in range(10)][-1], Merge)
    script.leave(0)
    assert not of(script.merge_done(mean), Evaluate)
    script.start(0)
    assert script.all(Evaluate)[-1].versions == (11,)
