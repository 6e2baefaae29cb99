"""Merged fragments on their way back: what is measured, and until when they are in flight."""

from typing import Any

import pytest

from diloco.core.engine.actions import Merge
from diloco.core.engine.rounds import in_flight as returns
from tests.support.engine_script import Script, name, of, started


def due_each_step(learners: int = 2, **changes: Any) -> Script:
    """All learners train; there is one fragment, due at every step."""
    return started(learners, **({"fragments": 1, "interval": 1, "overlap": 2} | changes))


def merge(script: Script, *members: int) -> int:
    """A round of half a second, launched now, closed after a quarter; no learner has the version yet that it makes."""
    everybody = range(len(script.options.learners))
    for index in everybody:
        script.step(index)
    script.wait(0.25)
    actions = [action for index in everybody if index not in members for action in script.decline(index, 0)]
    actions += [action for index in members for action in script.push(index, 0)]
    (one,) = of(actions, Merge)
    assert [member.learner for member in one.members] == [name(index) for index in members]
    script.wait(0.25)
    script.merge_done(one, applied=False)
    return one.version


def measured(script: Script) -> tuple[float | None, float | None]:
    """The measured times: of a round, from its launch; of a synchronization, from the round's close."""
    state = script.state
    return state.round_seconds.seconds, state.sync_seconds.seconds


def in_flight(script: Script, limit_seconds: float = 10.0) -> int:
    return returns.in_flight(script.state, script.now, limit_seconds)


class TestWhatIsMeasured:
    @pytest.mark.parametrize(
        ("quorum", "seen"),
        [(1, [(1.0, None), (1.0, None), (1.0, 2.75)]), (2, [(None, None), (2.0, None), (2.0, 2.75)])],
    )
    def test_a_round_ends_with_a_quorum_and_synchronization_with_the_last(
        self, quorum: int, seen: list[tuple[float | None, float | None]]
    ) -> None:
        script = due_each_step(3, quorum=quorum, fragments=4, interval=4, overlap=1, overlap_limit=3)
        version = merge(script, 0, 1, 2)
        found = []
        for index, seconds in enumerate((0.5, 1.0, 1.0)):
            script.wait(seconds)
            script.applied(index, 0, version)
            found.append(measured(script))
        assert found == seen
        assert script.state.overlap.shortest_seconds == seen[-1][0]

    def test_where_members_have_gone_those_that_are_left_make_the_quorum(self) -> None:
        script = due_each_step(quorum=2)
        for index in (0, 1):
            script.step(index)
        script.push(0, 0)
        (one,) = of(script.push(1, 0), Merge)
        script.leave(1)
        script.wait(1.0)
        script.merge_done(one, applied=False)
        script.applied(0, 0, one.version)
        assert measured(script) == (1.0, 1.0)

    def test_who_still_lacks_a_version_when_the_next_is_merged_is_done_with_it(self) -> None:
        script = due_each_step()
        script.applied(0, 0, merge(script, 0, 1))
        script.wait(1.5)
        merge(script, 0, 1)
        assert measured(script) == (0.5, 2.0)

    def test_what_is_over_is_measured_once(self) -> None:
        script = due_each_step()
        version = merge(script, 0, 1)
        script.applied(0, 0, version)
        script.applied(1, 0, version)
        script.applied(1, 0, version)
        script.wait(5.0)
        merge(script, 0, 1)
        assert measured(script) == (0.5, 0.25)

    def test_a_member_that_is_lost_is_not_waited_for(self) -> None:
        script = due_each_step()
        version = merge(script, 0, 1)
        script.applied(0, 0, version)
        script.wait(1.0)
        script.leave(1)
        assert measured(script) == (0.5, 1.25)
        script.wait(5.0)
        script.begin(1, versions=(version,))
        merge(script, 0, 1)
        assert measured(script) == (0.5, 1.25)

    def test_one_that_is_no_member_may_leave(self) -> None:
        script = due_each_step()
        version = merge(script, 0)
        script.leave(1)
        script.applied(0, 0, version)
        assert measured(script) == (0.5, 0.25)

    def test_where_every_member_is_lost_nothing_is_measured(self) -> None:
        script = due_each_step()
        merge(script, 0)
        script.leave(0)
        script.applied(1, 0, 1)
        assert measured(script) == (None, None)

    def test_a_merge_whose_members_are_all_away_is_not_on_its_way(self) -> None:
        script = due_each_step()
        script.step(0)
        script.push(0, 0)
        script.step(1)
        (one,) = of(script.decline(1, 0), Merge)
        script.leave(0)
        script.merge_done(one, applied=False)
        assert in_flight(script) == 0
        script.wait(8.0)
        script.begin(0, versions=(one.version,))
        script.applied(0, 0, merge(script, 0))
        assert measured(script) == (0.5, 0.25)


class TestWhatIsInFlight:
    def test_a_fragment_is_from_its_launch_until_its_members_train_on_it(self) -> None:
        script = due_each_step()
        assert in_flight(script) == 0
        script.step(0)
        assert in_flight(script) == 1
        script.step(1)
        script.push(0, 0)
        (one,) = of(script.push(1, 0), Merge)
        assert in_flight(script) == 1
        script.merge_done(one, applied=False)
        assert in_flight(script) == 1
        script.applied(0, 0, one.version)
        assert in_flight(script) == 0

    @pytest.mark.parametrize(("limit_seconds", "seconds"), [(10.0, 2.0), (1.0, 1.0)])
    def test_where_others_have_it_members_are_given_four_rounds_at_most(
        self, limit_seconds: float, seconds: float
    ) -> None:
        script = due_each_step()
        script.applied(0, 0, merge(script, 0))
        script.applied(1, 0, merge(script, 0))
        assert measured(script)[0] == 0.5
        script.now += seconds - 0.25 - 0.0625  # since the round was closed
        assert in_flight(script, limit_seconds) == 1
        script.now += 0.0625
        assert in_flight(script, limit_seconds) == 0
