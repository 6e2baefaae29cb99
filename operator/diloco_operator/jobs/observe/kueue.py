"""What Kueue's cluster-wide objects say of the nodes and the priority of a job's Workloads.

They change seldom, and are the same for many jobs. So each is read once a minute, not watched.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import REFUSED, ApiError, NotFoundError
from diloco_operator.api_server.kinds import QUEUE_PRIORITY, RESOURCE_FLAVOR, Kind, Object
from diloco_operator.decide.observed import ChildKey, Flavor, KueueSeen
from diloco_operator.decide.queue.queue_now import workloads_of
from diloco_operator.objects import items_of, mapping

READ_SECONDS: Final = 60.0
"""An object that was read, or that the API server refuses, is not read again for this long."""
_RETRY_SECONDS: Final = 5.0
"""The same of one that the API server could not answer for. Until then the job has what was read before."""
_MOST_KEPT: Final = 1000


@dataclass(slots=True)
class Kueue:
    """Reads ResourceFlavors and WorkloadPriorityClasses."""

    api: Api
    clock: Callable[[], float]
    """Seconds, monotonic."""
    missing: Callable[[], str]
    """Why there is no Kueue to ask; empty: there is."""
    _kept: dict[tuple[str, str], tuple[float, Object | str]] = field(default_factory=dict)
    """Objects, or why they could not be read, by kind and name, with the time until which they are used."""

    async def look(self, job: Object, children: Mapping[ChildKey, Object]) -> KueueSeen | None:
        """What a job's Workloads refer to; None: it has no queue."""
        queue = mapping(mapping(job.get("spec")).get("queue"))
        if not queue:
            return None
        if why := self.missing():
            return KueueSeen(missing=why)
        used = {name for one in workloads_of(children).values() if one.admitted for name in one.flavors}
        problems, flavors = list[str](), dict[str, Flavor]()
        for name, found in await self._each(RESOURCE_FLAVOR, sorted(used)):
            if isinstance(found, str):
                problems.append(found)
            else:
                spec = mapping(found.get("spec"))
                flavors[name] = Flavor(mapping(spec.get("nodeLabels")), tuple(items_of(spec.get("tolerations"))))
        priority = None
        for _, found in await self._each(QUEUE_PRIORITY, filter(None, [queue.get("priorityClass")])):
            if isinstance(found, str):
                problems.append(f"spec.queue.priorityClass: {found}")
            else:
                priority = int(found.get("value") or 0)
        return KueueSeen(problem="; ".join(problems), flavors=flavors, priority=priority)

    async def _each(self, kind: Kind, names: Iterable[str]) -> list[tuple[str, Object | str]]:
        return [(name, await self._read(kind, name)) for name in names]

    async def _read(self, kind: Kind, name: str) -> Object | str:
        until, found = self._kept.get((kind.name, name), (0.0, ""))
        if found and self.clock() < until:
            return found
        seconds = READ_SECONDS
        try:
            found = await self.api.get(kind, None, name)
        except ApiError as error:
            if not isinstance(error, (NotFoundError, *REFUSED)):
                seconds = max(_RETRY_SECONDS, error.retry_after_seconds)
            if seconds == READ_SECONDS or not isinstance(found, dict):
                found = f"{kind.name} {name} cannot be read: {error.message}"
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[kind.name, name] = self.clock() + seconds, found
        return found
