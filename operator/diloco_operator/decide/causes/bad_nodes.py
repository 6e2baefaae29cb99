"""On which nodes different learners keep crashing, while others of their pools work elsewhere. Pure.

A crash may be due to the node: an accelerator, a driver, a disk. It may as well be due to the program or its data, and
then learners of the pool crash wherever they are. So crashes speak against a node only where others of the pool work,
for longer than the crashing ones did, on at least as many other nodes. A person decides what becomes of the node.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from diloco.spec.base import HOST_NAME
from diloco.spec.words import shortlist
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.pods import is_crash, is_ready, node_of, running_since
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import parsed_time

LEARNERS_OF_A_NODE: Final = 2
"""Different learners that have to crash on a node (ours): of one, its data may be the cause."""
CRASHES: Final = 2
"""Crashes of a learner's container that count as more than a mishap (ours)."""
WITHIN_SECONDS: Final = 1800.0
"""Only crashes in this time count (ours). Kubelet waits up to 300 s before it starts a container again."""
WORKS_SECONDS: Final = 120.0
"""A learner works once it has run for this long at least (ours)."""
_NODE_NAME: Final = re.compile(HOST_NAME)
_LONGEST_NODE_NAME: Final = 253
_NEVER_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons for an end before the first instruction, as of a driver that does not answer. Kubelet gives them no start."""

_Node = tuple[str, str]
"""A cluster, empty for home, and a node's name."""


def bad_node_causes(pools: Iterable[tuple[PoolWorkload, Mapping[int, Object]]], now: datetime) -> list[Cause]:
    """A cause for each such node. ``pools``: each with the pods of its set, by index."""
    against: dict[_Node, set[str]] = {}
    there: set[_Node] = set()
    for workload, pods in pools:
        cluster = workload.key.cluster
        placed = {index: pod for index, pod in pods.items() if _node_of(pod)}
        there |= {(cluster, _node_of(pod)) for pod in placed.values()}
        for node, index in _crashing(placed, now):
            against.setdefault((cluster, node), set()).add(workload.learner_of(index))
    found = {node: learners for node, learners in against.items() if len(learners) >= LEARNERS_OF_A_NODE}
    # Of so many at once, something else is the cause.
    return [_cause(*one) for one in sorted(found.items())] if 2 * len(found) <= len(there) else []


def _cause(node: _Node, learners: set[str]) -> Cause:
    cluster, name = node
    where = f"{name} in cluster {cluster}" if cluster else name
    text = f"{shortlist(sorted(learners))} keep crashing on {where}, and others work elsewhere: kubectl cordon {name}"
    return Cause(Reason.NODE_SUSPECT, text)


def _crashing(pods: Mapping[int, Object], now: datetime) -> Iterator[tuple[str, int]]:
    """The pods of a set whose crashes speak against their nodes: node and index."""
    runs = {index: run for index, pod in pods.items() if (run := _run_before_crash(pod, now)) is not None}
    bad = {_node_of(pods[index]) for index in runs}
    proof = max([WORKS_SECONDS, *runs.values()])
    good = {_node_of(pod) for index, pod in pods.items() if index not in runs and _works(pod, proof, now)} - bad
    if len(good) >= len(bad):
        yield from ((_node_of(pods[index]), index) for index in sorted(runs))


def _node_of(pod: Object) -> str:
    """The pod's node; empty: it has none, or what is there is no node's name."""
    name = node_of(pod)
    return name if len(name) <= _LONGEST_NODE_NAME and _NODE_NAME.fullmatch(name) else ""


def _run_before_crash(pod: Object, now: datetime) -> float | None:
    """How many seconds a container of it ran before its latest crash, if it keeps crashing; None: none does."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        over = (status.get("state") or {}).get("terminated")
        ended = over or (status.get("lastState") or {}).get("terminated")
        times = int(status.get("restartCount") or 0) + bool(over)
        if not ended or times < CRASHES or not is_crash(ended):
            continue
        finished = parsed_time(ended.get("finishedAt"))
        started = finished if ended.get("reason") in _NEVER_STARTED else parsed_time(ended.get("startedAt"))
        # The crash before was shortly before this start.
        if started is not None and finished is not None and (now - started).total_seconds() <= WITHIN_SECONDS:
            return max(0.0, (finished - started).total_seconds())
    return None


def _works(pod: Object, seconds: float, now: datetime) -> bool:
    since = running_since(pod)
    return is_ready(pod) and since is not None and (now - since).total_seconds() >= seconds
