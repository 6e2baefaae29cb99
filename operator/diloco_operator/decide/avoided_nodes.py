"""Which nodes are avoided for a while, because different learners keep crashing on them. Pure.

A crash may be due to the node: an accelerator, a driver, a disk. It may as well be due to the program or its data, and
then learners of the pool crash wherever they are. So crashes speak against a node only where others of the pool work,
for longer than the crashing ones did, on at least as many other nodes.

Once the pods are elsewhere, nothing in the cluster says why. So what is avoided stands in the status, with its end.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from diloco.spec.base import HOST_NAME
from diloco.spec.status import MOST_AVOIDED_NODES, MOST_LEARNERS_OF_NODE, AvoidedNode
from diloco.spec.words import listed, shortlist
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.pods import is_crash, is_ready, running_since
from diloco_operator.decide.observed import Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import parsed_time
from diloco_operator.decide.workloads import PoolWorkload
from diloco_operator.manifests.avoidance import avoided_by

LEARNERS_OF_A_NODE: Final = 2
"""Different learners that have to crash on a node until it is avoided (ours): of one, its data may be the cause."""
CRASHES: Final = 2
"""Crashes of a learner's container that count as more than a mishap (ours)."""
WITHIN_SECONDS: Final = 1800.0
"""Only crashes in this time count (ours). Kubelet waits up to 300 s before it starts a container again."""
WORKS_SECONDS: Final = 120.0
"""A learner works once it has run for this long at least (ours)."""
AVOIDED_SECONDS: Final = 3600
"""How long a node is avoided (ours). If learners still crash there afterwards, it begins anew."""
_FEW: Final = 3
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_NODE_NAME: Final = re.compile(HOST_NAME)
_LONGEST_NODE_NAME: Final = 253
_NEVER_STARTED: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons for an end before the first instruction, as of a driver that does not answer. Kubelet gives them no start."""

Place = tuple[str, str]
"""A cluster, empty for home, and a node's name."""


class PoolPods(NamedTuple):
    """A pool and the pods of its set, by index."""

    workload: PoolWorkload
    pods: Mapping[int, Object]

    @property
    def placed(self) -> dict[int, Object]:
        """Those that have a node."""
        return {index: pod for index, pod in self.pods.items() if node_of(pod)}


@dataclass(slots=True)
class _Crashing:
    """The learners that keep crashing on each node."""

    on: dict[Place, list[str]] = field(default_factory=dict)
    against: dict[Place, list[str]] = field(default_factory=dict)
    """Those of them whose crashes speak against the node."""

    def add(self, pool: PoolPods, now: datetime) -> None:
        placed = pool.placed
        runs = {index: run for index, pod in placed.items() if (run := _run_before_crash(pod, now)) is not None}
        bad = {node_of(placed[index]) for index in runs}
        proof = max([WORKS_SECONDS, *runs.values()])
        good = {node_of(pod) for index, pod in placed.items() if index not in runs and _works(pod, proof, now)} - bad
        for index in sorted(runs):
            place, learner = (pool.workload.key.cluster, node_of(placed[index])), f"{pool.workload.pool}/{index}"
            self.on.setdefault(place, []).append(learner)
            if len(good) >= len(bad):
                self.against.setdefault(place, []).append(learner)


def avoided_nodes(
    before: Sequence[AvoidedNode], pools: Sequence[PoolPods], now: datetime, forbidden: Collection[str]
) -> tuple[AvoidedNode, ...]:
    """The nodes to be avoided from now on, with those that are avoided already.

    Args:
        before: Those in the status.
        pools: The job's pools; without pods, where those could not be listed.
        now: The time.
        forbidden: Clusters in which the operator may not delete pods. There, avoiding a node has no effect.
    """
    until = now.replace(microsecond=0) + timedelta(seconds=AVOIDED_SECONDS)
    # Never for longer than a node that is found now: a later end is of a clock that was ahead.
    still = {(one.cluster or "", one.node): _ending(one, until) for one in before if one.until > now}
    crashing = _Crashing()
    for pool in pools:
        crashing.add(pool, now)
    told = list(still.values())
    clusters = dict.fromkeys(pool.workload.key.cluster for pool in pools)
    for cluster in clusters:
        known = {node for its, node in still if its == cluster}
        there = {node_of(pod) for pool in pools if pool.workload.key.cluster == cluster for pod in pool.placed.values()}
        found = {node: learners for (its, node), learners in crashing.against.items() if its == cluster}
        # Whatever one cluster's server says leaves room for the nodes of others.
        room = max(1, MOST_AVOIDED_NODES // len(clusters)) - len(known)
        told += [
            AvoidedNode(cluster=cluster or None, node=node, until=until, learners=_named((), found[node]))
            for node in _suspects(found, known, there)[: max(0, room)]
        ]
    # Once a node is to be avoided, whoever crashes there goes elsewhere.
    told = [_with_learners(one, crashing.on.get((one.cluster or "", one.node), ())) for one in told]
    return tuple(_marked(one, forbidden) for one in told[:MOST_AVOIDED_NODES])


def nodes_to_avoid(workload: PoolWorkload, avoided: Iterable[AvoidedNode], now: datetime) -> tuple[str, ...]:
    """The nodes that new pods of a pool should avoid, sorted: those on which learners of this pool crashed."""
    own = f"{workload.pool}/"
    return tuple(
        sorted(
            one.node
            for one in avoided
            if (one.cluster or "") == workload.key.cluster
            and one.until > now
            and one.message is None
            and any(learner.startswith(own) for learner in one.learners)
        )
    )


def has_to_move(pod: Object, nodes: Collection[str], now: datetime) -> bool:
    """Whether a pod keeps crashing on one of ``nodes``, and another pod in its place may come to another node."""
    node = node_of(pod)
    if node not in nodes or node in avoided_by(pod) or is_ready(pod):
        return False
    return _run_before_crash(pod, now) is not None


def not_avoided(avoided: Iterable[AvoidedNode]) -> list[Cause]:
    """A cause for each cluster whose nodes cannot be avoided."""
    nodes: dict[str, list[str]] = {}
    for one in avoided:
        if one.message is not None:
            nodes.setdefault(one.message, []).append(one.node)
    return [
        Cause(Reason.NODE_NOT_AVOIDED, f"different learners keep crashing on {shortlist(names)}: {message}")
        for message, names in nodes.items()
    ]


def node_of(pod: Object) -> str:
    """The pod's node; empty: it has none, or what is there is no node's name."""
    name = str((pod.get("spec") or {}).get("nodeName") or "")
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


def _suspects(crashing: Mapping[str, Sequence[str]], known: Collection[str], there: Collection[str]) -> list[str]:
    """The nodes of a cluster that are avoided from now on, the worst first.

    Args:
        crashing: The learners that speak against each node.
        known: Nodes that are avoided already.
        there: Nodes that have learners.
    """
    found = [node for node in crashing if node not in known and len(crashing[node]) >= LEARNERS_OF_A_NODE]
    if 2 * (len(found) + len(known)) > len({*there, *known}):
        # Of so many at once, something else is the cause; and somewhere the learners have to be.
        return []
    return sorted(found, key=lambda node: (-len(crashing[node]), node))


def _ending(one: AvoidedNode, latest: datetime) -> AvoidedNode:
    return one if one.until <= latest else one.model_copy(update={"until": latest})


def _with_learners(one: AvoidedNode, learners: Sequence[str]) -> AvoidedNode:
    return one.model_copy(update={"learners": _named(one.learners, learners)})


def _named(known: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
    """The learners to name, sorted. Of each pool some, because pools that are not named do not avoid the node."""
    rank: dict[str, int] = {}
    ranked = []
    for learner in dict.fromkeys([*known, *more]):
        pool = learner.rpartition("/")[0]
        rank[pool] = rank.get(pool, -1) + 1
        ranked.append((rank[pool], learner))
    # By rank alone: where there is room, those that were named stay.
    ranked.sort(key=lambda pair: pair[0])
    return tuple(sorted(learner for _, learner in ranked[:MOST_LEARNERS_OF_NODE]))


def _marked(one: AvoidedNode, forbidden: Collection[str]) -> AvoidedNode:
    """``one``, with why it has no effect. That stays until its end, or its effect would come and go."""
    if one.message is not None or (one.cluster or "") not in forbidden:
        return one
    where = f"cluster {one.cluster}" if one.cluster else "this namespace"
    return one.model_copy(update={"message": f"the operator has no right to delete pods in {where}"})


def begun(before: Iterable[AvoidedNode], after: Iterable[AvoidedNode]) -> str:
    """What to say of nodes that are avoided from now on; empty: there are none."""
    ends = {(one.cluster, one.node): one.until for one in before}
    # An end that is only nearer than it was begins nothing.
    new = [one for one in after if one.until > ends.get((one.cluster, one.node), _NEVER) and one.message is None]
    return shortlist([_said(one) for one in new])


def _said(one: AvoidedNode) -> str:
    where = f" in cluster {one.cluster}" if one.cluster else ""
    return f"{one.node}{where} is avoided until {one.until:%Y-%m-%dT%H:%M:%SZ}: {_who(one)} keep crashing there"


def _who(one: AvoidedNode) -> str:
    return shortlist([*one.learners]) if len(one.learners) > _FEW else listed(one.learners, "and")
