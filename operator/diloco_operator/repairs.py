"""Limits how often the same object is repaired: if something keeps reverting it, repairs pause in between.

Otherwise a webhook that rewrites our objects, or a second operator with other settings, would be answered many times a
second, forever. A change that a new manifest asks for is never delayed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from diloco_operator.decide.drift import APPLIED
from diloco_operator.decide.observed import ChildKey, Object

AT_ONCE: Final = 4
"""How often the same object is applied without a pause: its creation and three repairs."""
PAUSE_SECONDS: Final = 60.0
"""The pause between two repairs after that."""
FORGOTTEN_SECONDS: Final = 600.0
"""After this long without a repair, the next ones are made at once again."""


@dataclass(frozen=True, slots=True)
class _Applied:
    digest: str
    times: int
    at: float


@dataclass(slots=True)
class Repairs:
    """The repairs of one job's objects."""

    clock: Callable[[], float]
    """Seconds, monotonic."""
    _last: dict[ChildKey, _Applied] = field(default_factory=dict)

    def held_back(self, child: ChildKey, body: Object) -> bool:
        """Whether this object must wait before it is applied again."""
        last = self._same(child, body)
        return last is not None and last.times >= AT_ONCE and self.clock() - last.at < PAUSE_SECONDS

    def applied(self, child: ChildKey, body: Object) -> bool:
        """Record that it was applied. True: it will not be applied again before a pause is over."""
        last = self._same(child, body)
        now = _Applied(_digest(body), 1 if last is None else last.times + 1, self.clock())
        self._last[child] = now
        return now.times >= AT_ONCE

    def _same(self, child: ChildKey, body: Object) -> _Applied | None:
        last = self._last.get(child)
        if last is None or last.digest != _digest(body) or self.clock() - last.at >= FORGOTTEN_SECONDS:
            return None
        return last


def _digest(body: Object) -> str:
    return str((body["metadata"].get("annotations") or {}).get(APPLIED, ""))
