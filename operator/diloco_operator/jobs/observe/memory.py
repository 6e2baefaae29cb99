"""What requests have shown about one job. A new process can do without it.

It also limits how often one object is repaired: if something keeps reverting it, repairs pause in between. A change
that a new manifest asks for is never delayed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from diloco_operator.api_server.errors import ApiError
from diloco_operator.decide.causes.ends import Ends
from diloco_operator.decide.objects.drift import digest
from diloco_operator.decide.observed import Applied, ChildKey, Object, PodList, Sessions, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import PodDeletion

REFUSED_SECONDS: Final = 30.0
"""What the API server has refused is retried after this long."""
FAILURES_TOLD: Final = 3
"""A write is reported after this many failures in a row that may have been temporary."""
AT_ONCE: Final = 4
"""How often the same object is applied without a pause: its creation and three repairs."""
PAUSE_SECONDS: Final = 60.0
"""The pause between two repairs after that."""
QUIET_SECONDS: Final = 600.0
"""After this long without a repair, the next ones are made at once again."""


class _Repairs(NamedTuple):
    times: int
    at: float


@dataclass(slots=True)
class Memory:
    """What is known of a job besides the caches."""

    uid: str
    clock: Callable[[], float]
    """Seconds, monotonic."""
    ends: Ends = field(default_factory=Ends)
    """Of its processes."""
    syncer: SyncerStatusView | SyncerAway | None = None
    """The latest answer, or that the syncer no longer answers."""
    syncer_at: float = 0.0
    """When it was last asked."""
    heard_at: float = 0.0
    """When it last answered."""
    unanswered: int = 0
    """Latest requests to the syncer that it did not answer, in a row."""
    sessions_told: Sessions | None = None
    """The learners' sessions up to which events were recorded."""
    sessions_told_at: float = 0.0
    looked: PodList | None = None
    look_failure: ApiError | None = None
    """Why the pods could not be listed just now."""
    looked_at: float = 0.0
    looked_at_versions: dict[ChildKey, int] = field(default_factory=dict)
    refused: dict[ChildKey, str] = field(default_factory=dict)
    refused_at: float = 0.0
    """Since when refusals are collected."""
    refused_generation: int | None = None
    """The generation of the manifest whose objects were refused."""
    failing: dict[ChildKey, tuple[int, str]] = field(default_factory=dict)
    """Writes that failed without being refused: how often in a row, and why."""
    applied: dict[ChildKey, Applied] = field(default_factory=dict)
    foreign: frozenset[ChildKey] = frozenset()
    pods_forbidden: dict[str, PodDeletion] = field(default_factory=dict)
    """Clusters that refuse to delete pods, with one that each refused."""
    reverted: dict[ChildKey, str] = field(default_factory=dict)
    """How something keeps reverting objects, and who it is."""
    _repairs: dict[ChildKey, _Repairs] = field(default_factory=dict)

    def gone(self, pod_uid: str) -> None:
        """Record that a pod of the last list is gone."""
        if self.looked is not None:
            pods = tuple(one for one in self.looked.pods if one.pod["metadata"]["uid"] != pod_uid)
            self.looked = replace(self.looked, pods=pods)

    def was_applied(self, child: ChildKey, applied: Applied) -> None:
        """Record that a child was applied."""
        self._repairs[child] = _Repairs(self._times(child, applied.wanted) + 1, self.clock())
        self.applied[child] = applied

    def is_contested(self, child: ChildKey, body: Object) -> bool:
        """Whether something has reverted this object as often as it is repaired without a pause."""
        return self._times(child, digest(body)) >= AT_ONCE - 1

    def is_too_soon(self, child: ChildKey, body: Object) -> bool:
        """Whether the next repair of this object has to wait."""
        repairs = self._repairs.get(child)
        return (
            repairs is not None
            and self.clock() - repairs.at < PAUSE_SECONDS
            and self._times(child, digest(body)) >= AT_ONCE
        )

    def failed(self, child: ChildKey, why: str) -> None:
        """Record a failed write that may succeed next time."""
        times, _ = self.failing.get(child, (0, ""))
        self.failing[child] = (times + 1, why)

    @property
    def still_failing(self) -> dict[ChildKey, str]:
        """Writes that have failed so often that they are reported."""
        return {child: why for child, (times, why) in self.failing.items() if times >= FAILURES_TOLD}

    @property
    def still_reverted(self) -> dict[ChildKey, str]:
        """As `reverted`, of those that are still being repaired: each repair lasts for a moment only."""
        lately = self.clock() - 2 * PAUSE_SECONDS
        return {child: why for child, why in self.reverted.items() if self._repairs[child].at > lately}

    def _times(self, child: ChildKey, wanted: str) -> int:
        """How often this object was applied, without a quiet time in between."""
        repairs, last = self._repairs.get(child), self.applied.get(child)
        if repairs is None or last is None or last.wanted != wanted or self.clock() - repairs.at >= QUIET_SECONDS:
            return 0
        return repairs.times
