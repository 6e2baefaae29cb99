"""An object that something keeps reverting is applied with pauses; a new desired state is applied at once."""

from diloco_operator.decide.drift import marked
from diloco_operator.decide.observed import ChildKey
from diloco_operator.repairs import AT_ONCE, FORGOTTEN_SECONDS, PAUSE_SECONDS, Repairs

POLICY = ChildKey("NetworkPolicy", "one-syncer")
WANTED = marked({"kind": "NetworkPolicy", "metadata": {"name": "one-syncer"}, "spec": {"a": 1}})
OTHER = marked({"kind": "NetworkPolicy", "metadata": {"name": "one-syncer"}, "spec": {"a": 2}})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fought_over(clock: Clock) -> Repairs:
    """Repairs as often as allowed without a pause, the last one now."""
    repairs = Repairs(clock)
    for time in range(AT_ONCE):
        assert not repairs.held_back(POLICY, WANTED)
        assert repairs.applied(POLICY, WANTED) is (time == AT_ONCE - 1)
    return repairs


def test_the_same_repair_is_made_several_times_at_once_then_after_pauses() -> None:
    clock = Clock()
    repairs = fought_over(clock)
    for _ in range(3):
        assert repairs.held_back(POLICY, WANTED)
        clock.now += PAUSE_SECONDS
        assert not repairs.held_back(POLICY, WANTED)
        assert repairs.applied(POLICY, WANTED)


def test_what_is_wanted_anew_and_other_objects_are_not_held_back() -> None:
    repairs = fought_over(Clock())
    assert not repairs.held_back(POLICY, OTHER)
    assert not repairs.held_back(ChildKey("NetworkPolicy", "one-learners"), WANTED)
    assert not repairs.applied(POLICY, OTHER)
    assert not repairs.held_back(POLICY, WANTED)


def test_after_a_quiet_time_it_is_mended_at_once_again() -> None:
    clock = Clock()
    repairs = fought_over(clock)
    clock.now += FORGOTTEN_SECONDS
    assert not repairs.applied(POLICY, WANTED)
    assert not repairs.held_back(POLICY, WANTED)
