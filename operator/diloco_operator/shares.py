"""How much of what all tenants share one of them may take: room in memory, connections, workers.

A tenant may hold at most twice as much as is left free. One alone gets two thirds, two get two fifths each, and one
that has nothing finds something free. The number of tenants need not be known.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""The container's memory limit in bytes, or ``max``."""


def is_fair(held: int, free: int) -> bool:
    """Whether a tenant may hold this much, if this much is then left free."""
    return held <= 2 * free


class Room:
    """So many items, or bytes, that are kept in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[tuple[str, Hashable], int] = {}
        self._of_tenants: Counter[str] = Counter()

    def hold(self, tenant: str, holder: Hashable, amount: int) -> bool:
        """Have `holder` keep this much from now on. False: its tenant would have too much, and nothing is changed."""
        more = amount - self._held.get((tenant, holder), 0)
        free = self._most - self._of_tenants.total() - more
        if more > 0 and not is_fair(self._of_tenants[tenant] + more, free):
            return False
        self._of_tenants[tenant] += more
        self._held[tenant, holder] = amount
        if not amount:
            del self._held[tenant, holder]
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
        return True


def part_of_memory(fraction: float, otherwise: int) -> int:
    """A fraction of the container's memory limit in bytes; ``otherwise``: if there is none."""
    try:
        return int(int(_LIMIT.read_text("ascii")) * fraction)
    except (OSError, ValueError):
        return otherwise


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant keeps for one purpose in a `Room`, in parts."""

    room: Room
    tenant: str
    purpose: Hashable

    def hold(self, part: Hashable, amount: int) -> bool:
        """As `Room.hold`."""
        return self.room.hold(self.tenant, (self.purpose, part), amount)
