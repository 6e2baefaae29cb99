"""Counts bytes between learners and syncer by region, direction and kind, where messages are sent and received.

This is the only place that other modules report to: whoever moves bytes says whose they are, and nothing else. Counted
are messages as gRPC gets them; what TLS, HTTP/2 and TCP add is not. The regions are given, so that no peer can
make more of them.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Final

from diloco.spec.names.learner_ids import region_of
from diloco.spec.status.syncer import BytesByKind, RegionBytes

_REMEMBERED_PARTS: Final = 1 << 20
"""Parts of transfers whose passing is remembered, a byte each (ours); those of the oldest transfers are forgotten."""


class Way(StrEnum):
    """A direction."""

    UP = "up"
    """Learners to syncer."""
    DOWN = "down"
    """Syncer to learners."""


class Kind(StrEnum):
    """What bytes were for."""

    BULK = "bulk"
    """Fragments, with the headers of their parts."""
    CONTROL = "control"
    """Everything else: sessions, requests, receipts, headers of transfers."""
    AGAIN = "again"
    """Parts that had passed before."""


class Traffic:
    """Counts of one syncer over all its starts. Owned by the event loop."""

    def __init__(self, regions: Iterable[str] = (), before: Iterable[RegionBytes] = ()) -> None:
        """``regions``: of the job; bytes of others are not counted. ``before``: counts of earlier starts."""
        earlier = {one.region: one for one in before}
        self._counts = {region: _counts(earlier.get(region, RegionBytes(region=region))) for region in regions}
        self._parts: OrderedDict[Hashable, bytearray] = OrderedDict()
        """By transfer: which parts have passed, 1 each."""
        self._remembered = 0

    def add(self, regions: Iterable[str]) -> None:
        """Count bytes of these regions too."""
        for region in regions:
            self._counts.setdefault(region, _counts(RegionBytes(region=region)))

    def count(self, learner: str, way: Way, kind: Kind, size_bytes: int) -> None:
        """Add bytes of a learner, whose id names its region."""
        counts = self._counts.get(region_of(learner))
        if counts is not None:
            counts[way, kind] += size_bytes

    def parts(self, learner: str, way: Way, what: Hashable, count: int) -> "Parts":
        """A transfer in ``count`` parts. One of the same learner, way, ``what`` and count that was before goes on."""
        key = (learner, way, what, count)
        passed = self._parts.pop(key, None)
        if passed is None:
            passed = bytearray(count)
            self._remembered += count
        self._parts[key] = passed
        while self._remembered > _REMEMBERED_PARTS and len(self._parts) > 1:
            self._remembered -= len(self._parts.popitem(last=False)[1])
        return Parts(self, learner, way, passed)

    def read(self) -> tuple[RegionBytes, ...]:
        """The counts by region, in the order in which they were given."""
        return tuple(
            RegionBytes(region=region, up=_by_kind(counts, Way.UP), down=_by_kind(counts, Way.DOWN))
            for region, counts in self._counts.items()
        )


class Parts:
    """A transfer. Each part is counted when it passes: as bulk the first time, then as sent again."""

    def __init__(self, traffic: Traffic, learner: str, way: Way, passed: bytearray) -> None:
        self._traffic = traffic
        self._learner = learner
        self._way = way
        self._passed = passed

    def moved(self, part: int, size_bytes: int) -> None:
        """Count a part that is handed to a connection or was received."""
        self._traffic.count(self._learner, self._way, Kind.AGAIN if self._passed[part] else Kind.BULK, size_bytes)
        self._passed[part] = 1


def _counts(before: RegionBytes) -> dict[tuple[Way, Kind], int]:
    by_way = {Way.UP: before.up, Way.DOWN: before.down}
    return {(way, kind): getattr(kinds, kind) for way, kinds in by_way.items() for kind in Kind}


def _by_kind(counts: dict[tuple[Way, Kind], int], way: Way) -> BytesByKind:
    return BytesByKind(**{kind.value: counts[way, kind] for kind in Kind})
