"""Why processes of a job ended and others took their places, counted by cause.

The operator looks at pods as long as learners are missing, so it sees nearly every end; of several ends of a container
between two looks, the cause of the latest counts for all. What ended before `since` was counted by an earlier process,
or never.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_JOB_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_STUCK
from diloco_operator.decide.objects.workloads import number_of
from diloco_operator.decide.observed import Object, PodObserved
from diloco_operator.decide.status.text import parsed_time
from diloco_operator.objects import mapping


class End(StrEnum):
    """Why a process ended."""

    OUT_OF_MEMORY = "OutOfMemory"
    STUCK = "Stuck"
    """It made no step for too long."""
    BAD_INPUT = "BadInput"
    """A mistake in the manifest, the data, a file or an address."""
    REFUSED = "Refused"
    """By the syncer."""
    STOPPED = "Stopped"
    """In order."""
    CRASHED = "Crashed"
    PREEMPTED = "Preempted"
    """By a pod of higher priority."""
    EVICTED = "Evicted"
    """By a drain, a full node, or Kueue."""
    NODE_LOST = "NodeLost"
    """Its node was deleted, or has a taint that the pod does not tolerate."""


_OF_EXIT: Final[Mapping[int, End]] = MappingProxyType(
    {
        EXIT_OK: End.STOPPED,
        EXIT_JOB_FAILED: End.STOPPED,
        EXIT_BAD_INPUT: End.BAD_INPUT,
        EXIT_REFUSED: End.REFUSED,
        EXIT_STUCK: End.STUCK,
    }
)
_OF_DISRUPTION: Final[Mapping[str, End]] = MappingProxyType(
    {
        "PreemptionByScheduler": End.PREEMPTED,
        "DeletionByTaintManager": End.NODE_LOST,
        "DeletionByPodGC": End.NODE_LOST,
    }
)
"""Reasons of the condition DisruptionTarget; all others are evictions."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_Key = tuple[str, str]
"""A pod's uid and a container's name, empty for the pod itself."""


@dataclass(slots=True)
class Ends:
    """The ends of one job's processes that were seen."""

    since: datetime = _NEVER
    counts: Counter[End] = field(default_factory=Counter)
    _known: dict[_Key, int] = field(default_factory=dict)
    """How many ends were seen of each, of the pods of the latest look."""

    def look(self, pods: Iterable[PodObserved]) -> None:
        """Count what is new in a list of the job's pods."""
        seen: dict[_Key, int] = {}
        for one in pods:
            for name, times, end, at in _ends(one.pod):
                key = str(one.pod["metadata"]["uid"]), name
                seen[key] = times
                if key in self._known:
                    self.counts[end] += max(0, times - self._known[key])
                elif at is not None and at >= self.since:
                    self.counts[end] += 1
        self._known = seen


def _ends(pod: Object) -> Iterator[tuple[str, int, End, datetime | None]]:
    """A container's name, how often it has ended, why and when it did last."""
    status = mapping(pod.get("status"))
    targets = [one for one in status.get("conditions") or () if one.get("type") == "DisruptionTarget"]
    if targets and (disrupted := targets[0]).get("status") == "True":
        end = _OF_DISRUPTION.get(str(disrupted.get("reason")), End.EVICTED)
        yield "", 1, end, parsed_time(disrupted.get("lastTransitionTime"))
        return
    if pod["metadata"].get("deletionTimestamp"):
        return  # whoever deletes it ends its containers
    for one in status.get("containerStatuses") or ():
        over = mapping(mapping(one.get("state")).get("terminated"))
        last = over or mapping(mapping(one.get("lastState")).get("terminated"))
        times = number_of(one.get("restartCount")) + bool(over)
        yield str(one.get("name")), times, _of_container(last), parsed_time(last.get("finishedAt"))


def _of_container(ended: Mapping[str, object]) -> End:
    if ended.get("reason") == "OOMKilled":
        return End.OUT_OF_MEMORY
    code = ended.get("exitCode")
    return _OF_EXIT.get(code, End.CRASHED) if isinstance(code, int) else End.CRASHED
