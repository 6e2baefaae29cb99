import pytest

from diloco.core.engine.rounds.schedule import Schedule


def test_syncer_steps_count_from_one_and_fragments_from_zero() -> None:
    schedule = Schedule(fragments=3, interval=6, overlap=1)
    assert [schedule.fragment(step) for step in range(1, 8)] == [0, 1, 2, 0, 1, 2, 0]
    assert [schedule.due(step) for step in range(1, 8)] == [2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize(("fragments", "interval"), [(1, 1), (1, 30), (5, 24), (24, 24), (7, 100), (24, 8), (10, 3)])
def test_every_fragment_is_due_once_in_an_interval(fragments: int, interval: int) -> None:
    schedule = Schedule(fragments, interval, overlap=0)
    for cycle in range(4):
        steps = range(cycle * fragments + 1, (cycle + 1) * fragments + 1)
        assert [schedule.fragment(step) for step in steps] == list(range(fragments))
        assert all(cycle * interval <= schedule.due(step) <= (cycle + 1) * interval for step in steps)
        assert all(schedule.due(step + fragments) - schedule.due(step) == interval for step in steps)


@pytest.mark.parametrize(
    ("fragments", "interval", "overlap", "in_flight"),
    [
        (24, 24, 2, 2),
        (24, 24, 0, 1),
        (1, 24, 2, 1),
        (5, 24, 2, 1),
        (24, 12, 2, 4),
        (4, 8, 8, 4),
        (4, 8, 100, 4),
        (3, 10, 4, 2),
    ],
)
def test_fragments_due_within_the_overlap_may_be_in_flight(
    fragments: int, interval: int, overlap: int, in_flight: int
) -> None:
    assert Schedule(fragments, interval, 0).in_flight(overlap) == in_flight


def test_fragments_in_flight_span_whole_steps() -> None:
    schedule = Schedule(fragments=4, interval=10, overlap=2)
    assert [schedule.spans(fragments) for fragments in range(5)] == [0, 3, 5, 8, 10]
