"""Bytes by region, direction and kind."""

import pytest

from diloco.spec.status.syncer import BytesByKind, RegionBytes
from diloco.wire.server.traffic import Kind, Traffic, Way


def test_bytes_go_to_the_region_of_the_learner() -> None:
    traffic = Traffic(("east", "west"))
    traffic.count("west/old/0", Way.UP, Kind.BULK, 7)
    traffic.count("west/new/3", Way.UP, Kind.BULK, 5)
    traffic.count("west/old/0", Way.DOWN, Kind.CONTROL, 2)
    assert traffic.read() == (
        RegionBytes(region="east"),
        RegionBytes(region="west", up=BytesByKind(bulk=12), down=BytesByKind(control=2)),
    )


def test_a_region_that_is_added_is_counted_from_then_on() -> None:
    traffic = Traffic(("east",))
    traffic.add(("east", "west"))
    traffic.count("west/p/0", Way.UP, Kind.BULK, 3)
    traffic.add(("west",))
    assert traffic.read() == (RegionBytes(region="east"), RegionBytes(region="west", up=BytesByKind(bulk=3)))


def test_a_peer_cannot_make_regions() -> None:
    traffic = Traffic(("east",))
    for number in range(1000):
        traffic.count(f"made-up-{number}/p/0", Way.UP, Kind.CONTROL, 9)
    assert traffic.read() == (RegionBytes(region="east"),)


def test_counts_go_on_from_those_of_earlier_starts() -> None:
    before = (
        RegionBytes(region="gone", up=BytesByKind(bulk=1)),
        RegionBytes(region="east", down=BytesByKind(again=6)),
    )
    traffic = Traffic(("east",), before)
    traffic.count("east/p/0", Way.DOWN, Kind.AGAIN, 4)
    assert traffic.read() == (RegionBytes(region="east", down=BytesByKind(again=10)),)


def test_a_part_is_bulk_when_it_first_passes() -> None:
    traffic = Traffic(("east",))
    transfer = traffic.parts("east/p/0", Way.DOWN, (1, 5), 3)
    transfer.moved(0, 10)
    transfer.moved(2, 4)
    transfer.moved(0, 10)
    assert traffic.read()[0].down == BytesByKind(bulk=14, again=10)
    # Of the same transfer, begun anew after it broke off.
    traffic.parts("east/p/0", Way.DOWN, (1, 5), 3).moved(2, 4)
    for what, count in (((1, 6), 3), ((1, 5), 4)):
        traffic.parts("east/p/0", Way.DOWN, what, count).moved(2, 1)
    assert traffic.read()[0].down == BytesByKind(bulk=16, again=14)
    assert traffic.read()[0].up == BytesByKind()


def test_parts_of_old_transfers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.wire.server.traffic._REMEMBERED_PARTS", 6)
    traffic = Traffic(("east",))
    first = traffic.parts("east/p/0", Way.UP, "first", 3)
    for what in ("second", "third"):
        traffic.parts("east/p/0", Way.UP, what, 3).moved(0, 1)
    first.moved(0, 1)
    first.moved(0, 1)  # one that goes on is not
    assert traffic.read()[0].up == BytesByKind(bulk=3, again=1)
    traffic.parts("east/p/0", Way.UP, "third", 3).moved(0, 1)
    traffic.parts("east/p/0", Way.UP, "first", 3).moved(0, 1)
    assert traffic.read()[0].up == BytesByKind(bulk=4, again=2)
