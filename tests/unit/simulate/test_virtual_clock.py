from diloco.simulate.clock import VirtualClock
from diloco.simulate.link import Connection, Way
from diloco.simulate.scenario import Link


def drain(clock: VirtualClock) -> None:
    while clock.advance():
        pass


def test_callbacks_run_in_order_of_time_and_then_of_scheduling() -> None:
    clock, seen = VirtualClock(), []
    clock.at(2.0, lambda: seen.append((clock.now, "late")))
    clock.at(1.0, lambda: seen.append((clock.now, "first")))
    clock.at(1.0, lambda: seen.append((clock.now, "second")))
    drain(clock)
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_time_never_runs_backwards() -> None:
    clock, seen = VirtualClock(), []
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    drain(clock)
    assert seen == [5.0]


def test_fragments_follow_one_another_and_control_overtakes_them() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=0.5, bytes_per_second=100.0))
    connection.transfer(Way.UP, 100, lambda: seen.append(("one", clock.now)))
    connection.transfer(Way.UP, 100, lambda: seen.append(("two", clock.now)))
    connection.transfer(Way.DOWN, 100, lambda: seen.append(("back", clock.now)))
    connection.send(lambda: seen.append(("control", clock.now)))
    drain(clock)
    assert seen == [("control", 0.5), ("one", 1.5), ("back", 1.5), ("two", 2.5)]
    assert connection.bytes_moved == {Way.UP: 200, Way.DOWN: 100}


def test_what_is_under_way_on_a_broken_connection_never_arrives() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=1.0))
    connection.send(lambda: seen.append("control"))
    connection.transfer(Way.UP, 1, lambda: seen.append("fragment"))
    clock.at(0.5, connection.close)
    drain(clock)
    assert seen == []
