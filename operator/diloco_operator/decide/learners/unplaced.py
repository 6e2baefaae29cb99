"""Learners of several nodes that find only some of them: they keep none, and are tried again one at a time. Pure.

Two such learners could each wait for ever for the node that the other has. So the pods of one that found only some of
its nodes are held back, all of them (`held_pods`). After a pause they may be placed again, one learner of a pool at a
time. The pauses grow while that fails, and are others in each pool: else those of two pools, or jobs, could be tried at
the same moments and take each other's nodes for ever. How far it is, is in the status.
"""

import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from diloco.spec.status.job import UnplacedLearner
from diloco_operator.decide.causes.pods import unschedulable_since
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import Object
from diloco_operator.manifests.placement.holds import has_gate

PATIENCE_SECONDS: Final = 60
"""How long one pod of a learner waits for a node while others have theirs (ours), without ``fallbackAfterSeconds``."""
FIRST_PAUSE: Final = timedelta(seconds=60)
"""How long a learner's pods are held back the first time (ours); each time in a row doubles it."""
LONGEST_PAUSE: Final = timedelta(seconds=480)
"""The longest (ours), and with ``_MORE`` too: an autoscaler of nodes removes an idle node after ten minutes."""
_MORE: Final = 0.2
"""How much longer a pool's pauses may be, by its set's uid (ours)."""

_AT_ONCE: Final = timedelta(0)


class _Unit(NamedTuple):
    """The pods of a learner."""

    placed: int
    """Pods that have a node."""
    waits: timedelta
    """How long a pod of it has been without one; negative: none is."""
    changes: bool
    """Some pods are missing, leave, or may not be scheduled yet."""


def unplaced(
    workload: PoolWorkload,
    before: Iterable[UnplacedLearner],
    pods: Mapping[int, Object],
    now: datetime,
    patience: timedelta,
) -> tuple[UnplacedLearner, ...]:
    """The learners of which only some pods found a node.

    Args:
        workload: Their pool.
        before: Those of the last time.
        pods: The pods of its set, by index.
        now: The time.
        patience: How long a pod may wait while others of its learner have nodes.
    """
    own = workload.by_learner(pods)
    units = {index: _unit(workload, own.get(index, []), now) for index in workload.indices - workload.out}
    known = {one.index: one for one in before if one.index in units}
    held = {index: one.until for index, one in known.items() if one.until is not None}
    tried = {index: units[index] for index in known.keys() - held.keys()}
    for index in [index for index, unit in tried.items() if unit.placed == workload.nodes]:
        del known[index], tried[index]
    waiting = [index for index, unit in units.items() if index not in held and unit.placed and unit.waits >= _AT_ONCE]
    apart = [index for index in waiting if units[index].waits >= patience]
    lately = any(now - (until - _pause(workload, known[index].times)) < patience for index, until in held.items())
    # What others leave may complete one of them.
    stay = int(lately or len(apart) > 1)
    for index in sorted(apart, key=lambda index: (-units[index].placed, index))[stay:]:
        known[index] = _held(workload, index, known[index].times + 1 if index in known else 1, now)
    undecided = any(unit.changes or _AT_ONCE <= unit.waits < patience for unit in tried.values())
    due = sorted((until, index) for index, until in held.items() if until <= now)
    if due and not (waiting or undecided):
        known[due[0][1]] = known[due[0][1]].model_copy(update={"until": None})
    return tuple(known[index] for index in sorted(known))


def _unit(workload: PoolWorkload, pods: list[Object], now: datetime) -> _Unit:
    since = [found for pod in pods if (found := unschedulable_since(pod)) is not None]
    there = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and not has_gate(pod.get("spec"))]
    placed = [pod for pod in there if (pod.get("spec") or {}).get("nodeName") and unschedulable_since(pod) is None]
    return _Unit(len(placed), now - min(since) if since else timedelta(seconds=-1), len(there) < workload.nodes)


def _held(workload: PoolWorkload, index: int, times: int, now: datetime) -> UnplacedLearner:
    return UnplacedLearner(index=index, times=times, until=now.replace(microsecond=0) + _pause(workload, times))


def _pause(workload: PoolWorkload, times: int) -> timedelta:
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(times - 1, 10)))
    uid = "" if workload.live is None else str(workload.live["metadata"].get("uid", ""))
    share = 1 + _MORE * zlib.crc32(uid.encode()) / (1 << 32)
    return timedelta(seconds=int(longest.total_seconds() * share))
