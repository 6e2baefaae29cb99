"""Orders through a file: what is appended arrives once, and what is not the owner's, old or no order is ignored."""

import json
import os
from pathlib import Path

import pytest

from diloco.local.chaos.order_file import HEAL, Command, OrderReader, OrderWriter
from diloco.local.chaos.spec import ChaosError, Manner

NOW = 1_700_000_000.0
KILL = Command("s-1", NOW, "kill", ("a/b/0", "syncer"))
CUT = Command("s-2", NOW, "cut", ("a",), 2.5, Manner.RESET)


class Orders:
    """A file, its reader, and what the reader complains about."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "chaos.orders"
        self.told: list[str] = []
        self.now = NOW
        self.reader = OrderReader(self.path, self.told.append, lambda: self.now)

    def append(self, content: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(content)
        self.path.chmod(0o600)


def test_what_is_appended_arrives_once_and_in_order(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    assert orders.reader.new() == []
    writer = OrderWriter(orders.path)
    writer.write(KILL)
    writer.write(CUT)
    assert orders.reader.new() == [KILL, CUT]
    assert orders.reader.new() == []
    writer.write(Command("s-3", NOW, HEAL))
    assert [one.kind for one in orders.reader.new()] == [HEAL]
    assert orders.told == []
    assert orders.path.stat().st_mode & 0o777 == 0o600


def test_orders_before_the_start_are_not_carried_out(tmp_path: Path) -> None:
    OrderWriter(tmp_path / "chaos.orders").write(KILL)
    assert Orders(tmp_path).reader.new() == []


def test_a_line_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    OrderWriter(tmp_path / "whole").write(KILL)
    line = (tmp_path / "whole").read_bytes()
    orders = Orders(tmp_path)
    orders.append(line[:10])
    assert orders.reader.new() == []
    orders.append(line[10:])
    assert orders.reader.new() == [KILL]


def test_an_old_order_is_ignored(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    OrderWriter(orders.path).write(KILL)
    orders.now = NOW + 60.0
    assert orders.reader.new() == []
    assert orders.told == ["chaos.orders is ignored: an order is old"]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "explode"},
        {"victims": "a/b/0"},
        {"victims": [1]},
        {"victims": ["a"] * 10_001},
        {"seconds": 1e9},
        {"seconds": -1},
        {"seconds": "NaN"},
        {"made_at": None},
        {"manner": "loud"},
    ],
)
def test_what_is_no_order_is_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    orders = Orders(tmp_path)
    line = {"id": "x", "made_at": NOW, "kind": "pause", "victims": ["a/b/0"], "seconds": 1.0, "manner": "silent"}
    orders.append(json.dumps(line | change).encode() + b"\n" + json.dumps(line).encode() + b"\n")
    assert [one.victims for one in orders.reader.new()] == [("a/b/0",)]
    assert orders.told == ["chaos.orders is ignored: a line is not an order"]


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[]\n", b"7\n", b"{}\n", b"[" * 100_000 + b"\n"])
def test_garbage_is_ignored(tmp_path: Path, content: bytes) -> None:
    orders = Orders(tmp_path)
    orders.append(content)
    assert orders.reader.new() == []
    assert orders.told == ["chaos.orders is ignored: a line is not an order"]


def test_a_line_without_end_takes_no_more_than_its_bound(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.append(b"x" * (3 << 20))
    for _ in range(3):
        assert orders.reader.new() == []
    assert "chaos.orders is ignored: a line is too long" in orders.told


def test_a_file_that_others_may_write_is_ignored(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    OrderWriter(orders.path).write(KILL)
    orders.path.chmod(0o620)
    assert orders.reader.new() == []
    assert "it must belong to this user" in orders.told[0]


def test_a_pipe_in_its_place_blocks_nothing(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    os.mkfifo(orders.path)
    assert orders.reader.new() == []


def test_one_session_at_a_time(tmp_path: Path) -> None:
    first = OrderWriter(tmp_path / "chaos.orders")
    with pytest.raises(ChaosError, match="another diloco chaos is at work on this run"):
        OrderWriter(tmp_path / "chaos.orders")
    first.close()
    OrderWriter(tmp_path / "chaos.orders").close()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "chaos.orders").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ChaosError, match="cannot be written"):
        OrderWriter(tmp_path / "chaos.orders")
    assert not (tmp_path / "elsewhere").exists()
