from collections.abc import Callable
from functools import partial
from math import inf

from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.link import Connection, Direction
from diloco.simulate.scenario import Link


def drain(clock: VirtualClock) -> None:
    clock.run(inf, inf)


def test_callbacks_run_in_order_of_time_and_then_of_scheduling() -> None:
    clock, seen = VirtualClock(), []
    clock.at(2.0, lambda: seen.append((clock.now, "late")))
    clock.at(1.0, lambda: seen.append((clock.now, "first")))
    clock.at(1.0, lambda: seen.append((clock.now, "second")))
    drain(clock)
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_nothing_runs_after_a_stop() -> None:
    clock, seen = VirtualClock(), []
    clock.at(1.0, lambda: seen.append(clock.now))
    clock.at(1.0, clock.stop)
    clock.at(1.0, lambda: seen.append(clock.now))
    assert not clock.run(inf, inf)
    assert seen == [1.0]


def test_time_never_runs_backwards() -> None:
    clock, seen = VirtualClock(), []
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    drain(clock)
    assert seen == [5.0]


def test_fragments_follow_one_another_and_control_overtakes_them() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=0.5, bytes_per_second=100.0))
    connection.up.transfer(1, lambda: (100, lambda: seen.append(("one", clock.now))))
    connection.up.transfer(2, lambda: (100, lambda: seen.append(("two", clock.now))))
    connection.down.transfer(1, lambda: (100, lambda: seen.append(("back", clock.now))))
    connection.send(lambda: seen.append(("control", clock.now)))
    drain(clock)
    assert seen == [("control", 0.5), ("one", 1.5), ("back", 1.5), ("two", 2.5)]


def test_what_is_under_way_on_a_broken_connection_never_arrives() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=1.0))
    connection.send(lambda: seen.append("control"))
    connection.up.transfer(0, lambda: (1, lambda: seen.append("fragment")))
    clock.at(0.5, connection.close)
    drain(clock)
    assert seen == []


def test_messages_of_one_moment_travel_together_and_end_together() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=0.5))
    connection.send(lambda: seen.append("first"))
    connection.send(connection.close)
    connection.send(lambda: seen.append("after the end"))
    drain(clock)
    assert (seen, clock.happened) == (["first"], 1)


def test_an_answer_at_once_over_a_link_without_latency_arrives() -> None:
    clock, seen = VirtualClock(), []
    connection = Connection(clock, Link(latency_seconds=0.0))
    connection.send(lambda: connection.send(lambda: seen.append("answer")))
    drain(clock)
    assert seen == ["answer"]


class Sent:
    """Fragments of one byte over a link that takes a second for each."""

    def __init__(self, direction: Callable[[Connection], Direction]) -> None:
        self.clock, self.seen = VirtualClock(), list[int]()
        self.direction = direction(Connection(self.clock, Link(latency_seconds=0.0, bytes_per_second=1.0)))

    def send(self, *fragments: int) -> None:
        for fragment in fragments:
            self.direction.transfer(fragment, partial(self._begin, fragment))

    def _begin(self, fragment: int) -> tuple[int, Callable[[], None]]:
        return 1, lambda: self.seen.append(fragment)

    def order(self) -> list[int]:
        drain(self.clock)
        return self.seen


def test_outer_gradients_go_in_the_order_in_which_they_were_asked_for() -> None:
    sent = Sent(lambda connection: connection.up)
    sent.send(1, 2, 3, 4)
    assert sent.order() == [1, 2, 3, 4]


def test_of_merged_fragments_that_wait_the_newest_goes_first() -> None:
    sent = Sent(lambda connection: connection.down)
    sent.send(1, 2, 3, 4)
    assert sent.order() == [1, 4, 3, 2]


def test_a_newer_version_takes_the_place_of_one_that_waits() -> None:
    sent = Sent(lambda connection: connection.down)
    sent.send(1, 2, 3, 2)
    assert sent.order() == [1, 2, 3]


def test_an_outer_gradient_that_waits_can_be_called_off() -> None:
    sent = Sent(lambda connection: connection.up)
    sent.send(1, 2)
    assert sent.direction.withdraw(2) == 0.0
    assert sent.direction.withdraw(3) is None
    assert sent.order() == [1]


def test_one_under_way_is_called_off_and_the_next_begins_at_once() -> None:
    sent, unsent = Sent(lambda connection: connection.up), list[float | None]()
    sent.send(1, 2)
    sent.clock.at(0.25, lambda: unsent.append(sent.direction.withdraw(1)))
    assert sent.order() == [2]
    assert unsent == [0.75]
    assert sent.clock.now == 1.25


def test_what_was_sent_in_full_cannot_be_called_off() -> None:
    sent, unsent = Sent(lambda connection: connection.up), list[float | None]()
    sent.send(1)
    sent.clock.at(1.0, lambda: sent.clock.at(1.0, lambda: unsent.append(sent.direction.withdraw(1))))
    assert sent.order() == [1]
    assert unsent == [None]
