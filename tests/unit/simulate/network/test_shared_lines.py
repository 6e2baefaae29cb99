"""Lines that several connections pass share their rate evenly among the transfers under way."""

from functools import partial
from math import inf

import pytest

from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.link import Connection, Lines
from diloco.simulate.network.shared_line import SharedLine
from diloco.simulate.scenario import Link


def drain(clock: VirtualClock) -> None:
    clock.run(inf, inf)


class Seen:
    """When each transfer was complete."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.at: dict[str, float] = {}

    def done(self, name: str) -> None:
        self.at[name] = self.clock.now

    def connection(self, lines: Lines, rate: float = 1e18) -> Connection:
        return Connection(self.clock, Link(0.0, rate), lines)

    def send(self, connection: Connection, name: str, size_bytes: int, fragment: int = 0) -> None:
        connection.up.transfer(fragment, lambda: (size_bytes, partial(self.done, name)))


def test_a_transfer_alone_has_the_whole_rate_and_two_have_half_of_it() -> None:
    seen = Seen()
    line = SharedLine(seen.clock, 100.0)
    line.carry(100, partial(seen.done, "first"))

    def begin_second() -> None:
        line.carry(100, partial(seen.done, "second"))

    seen.clock.at(0.5, begin_second)
    drain(seen.clock)
    # Half of the first is through when the second begins; the second is alone for its last half.
    assert seen.at == pytest.approx({"first": 1.5, "second": 2.0})


def test_a_dropped_transfer_leaves_its_share_to_the_others() -> None:
    seen, left = Seen(), list[float]()
    line = SharedLine(seen.clock, 100.0)
    drop = line.carry(1000, partial(seen.done, "dropped"))
    line.carry(100, partial(seen.done, "other"))
    seen.clock.at(1.0, lambda: left.append(drop()))
    drain(seen.clock)
    assert left == [950.0]
    assert seen.at == pytest.approx({"other": 1.5})


def test_a_transfer_is_as_slow_as_the_slowest_of_its_lines() -> None:
    seen = Seen()
    near, far = SharedLine(seen.clock, 100.0), SharedLine(seen.clock, 1000.0)
    both = Lines((near, far), ())
    seen.send(seen.connection(both), "one", 100)
    seen.send(seen.connection(both), "other", 100)
    seen.send(seen.connection(both, rate=10.0), "by its own connections", 100)
    drain(seen.clock)
    assert seen.at["by its own connections"] == pytest.approx(10.0)
    assert seen.at["one"] == seen.at["other"] == pytest.approx(3.0)


def test_fragments_of_one_connection_follow_one_another_over_a_shared_line() -> None:
    seen = Seen()
    connection = seen.connection(Lines((SharedLine(seen.clock, 100.0),), ()))
    for fragment in range(3):
        seen.send(connection, str(fragment), 100, fragment)
    drain(seen.clock)
    assert seen.at == pytest.approx({"0": 1.0, "1": 2.0, "2": 3.0})


def test_a_connection_that_breaks_frees_the_line_and_delivers_nothing() -> None:
    seen = Seen()
    line = SharedLine(seen.clock, 100.0)
    broken, other = seen.connection(Lines((line,), ())), seen.connection(Lines((line,), ()))
    seen.send(broken, "broken", 1000)
    seen.send(broken, "waits", 1000, 1)
    seen.send(other, "other", 100)
    seen.clock.at(1.0, broken.close)
    drain(seen.clock)
    assert seen.at == pytest.approx({"other": 1.5})


def test_one_that_is_called_off_frees_the_lines_and_says_what_is_unsent() -> None:
    seen, unsent = Seen(), list[float | None]()
    near, far = SharedLine(seen.clock, 100.0), SharedLine(seen.clock, 1000.0)
    late, other = seen.connection(Lines((near, far), ())), seen.connection(Lines((near,), ()))
    seen.send(late, "late", 1000)
    seen.send(late, "next", 50, 1)
    seen.send(other, "other", 100)
    seen.clock.at(1.0, lambda: unsent.append(late.up.withdraw(0)))
    drain(seen.clock)
    # Each has half of the near line: 50 of 1000 bytes are sent after a second, and both have 50 left then.
    assert unsent == [950.0]
    assert seen.at == pytest.approx({"next": 2.0, "other": 2.0})


def test_ten_thousand_transfers_at_once_end_together() -> None:
    seen = Seen()
    line = SharedLine(seen.clock, 1e6)
    for number in range(10_000):
        line.carry(100, partial(seen.done, str(number)))
    drain(seen.clock)
    assert seen.at == pytest.approx(dict.fromkeys(map(str, range(10_000)), 1.0))
    assert seen.clock.happened == 2  # it also looks when the first would be complete alone
