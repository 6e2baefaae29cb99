"""Why pods that should run do not: problems of single pods, counted by pool, and of sets that may not create pods.

Pure, and nothing is remembered: a cause lasts exactly as long as what it is read from.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from diloco_operator import labels
from diloco_operator.decide.causes.cause import Cause, gravest_first, gravity, joined
from diloco_operator.decide.causes.claims import with_claims
from diloco_operator.decide.causes.egress import restricted
from diloco_operator.decide.causes.pods import (
    PodProblem,
    evicted_by,
    is_on_silent_node,
    is_ready,
    node_of,
    pod_problem,
    running_since,
)
from diloco_operator.decide.objects.workloads import PoolWorkload, component, index_of, is_outdated
from diloco_operator.decide.observed import ChildKey, Object, PodList, PodObserved
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line
from diloco_operator.manifests.placement.holds import creates_gated
from diloco_operator.names import PoolKey

JOIN_SECONDS = 60.0
"""A learner that has run this long without a session with the syncer counts as missing (ours)."""

_R = Reason
_WORDS = {
    _R.UNSCHEDULABLE: "unschedulable",
    _R.IMAGE_PULL_FAILED: "cannot pull the image",
    _R.POD_NOT_STARTED: "cannot be started",
    _R.VOLUME_PENDING: "waiting for a volume",
    _R.CONFIGURATION_ERROR: "stopped by a configuration error",
    _R.REFUSED: "refused by the syncer",
    _R.OUT_OF_MEMORY: "out of memory",
    _R.CRASH_LOOPING: "crash-looping",
    _R.EVICTED: "evicted",
    _R.LEARNERS_MISSING: "running but not joined to the syncer",
}
"""How a message describes one or more pods with that problem."""
_CUT_OFF = "it was joined before, so its link is cut, its node is gone or its process hangs"
FOUND_BY_LOOKING = frozenset(
    {
        *_WORDS,
        _R.NODE_SUSPECT,
        _R.PODS_FORBIDDEN,
        _R.POD_DELETION_FORBIDDEN,
        _R.ROLLOUT_WAITING,
        _R.NODE_LOST,
        _R.LOST_POD_KEPT,
        _R.SYNCER_NODE_LOST,
    }
)
"""Reasons that only the pods show: without a list of pods, whether they apply is not known."""
_NEVER = "~"
"""Sorts after every time."""
_NO_NODE = frozenset({_R.UNSCHEDULABLE, _R.EVICTED})
_FORBIDDEN_POD = re.compile(r'^pods "[^"]*" is forbidden: ')


@dataclass(frozen=True, slots=True)
class Spared:
    """What is known of learners and their pods besides the list of pods."""

    present: frozenset[str] | None = None
    """Ids of the learners that have a session with the syncer; None: the syncer did not report it."""
    spared: frozenset[str] = frozenset()
    """Ids of learners to leave out, because the cause why they do not run is reported already."""
    lost: frozenset[str] = frozenset()
    """Uids of pods on nodes that do not respond. Their causes are reported elsewhere (`lost_pods`)."""
    cut_off: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the syncer last heard of learners that have lost their session."""
    undeletable: frozenset[str] = frozenset()
    """Clusters whose API server refuses to delete pods."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The learners of an elastic pool that have no node."""

    learners: int
    message: str
    """Why they have none, in one line."""


def learner_causes(workloads: Iterable[PoolWorkload], looked: PodList, known: Spared, now: datetime) -> list[Cause]:
    """The causes that keep learners from running, but for lost nodes. What an elastic pool does without is none."""
    causes: list[Cause] = []
    for workload, own in _with_pods(workloads, looked):
        problems = _problems(workload, own, looked, known, now)
        lost = [one.pod for one in own if one.pod["metadata"].get("uid") in known.lost]
        missed = len({_learner(workload, pod) for pod in lost} - known.spared)
        causes += _grouped(without_waiting(workload, problems, missed), _counted(workload))
        causes += _forbidden(workload, looked.events)
        why = "other pods of the pool are not ready" if problems or lost else ""
        if workload.key.cluster in known.undeletable:
            why = "the operator has no right to delete pods there"
        causes += _rollout(workload, own, why)
    return causes


def _rollout(workload: PoolWorkload, own: Iterable[PodObserved], why: str) -> Iterator[Cause]:
    """Learners that do not get a changed template; ``why``: empty: they do, one after the other."""
    live = workload.live
    if live is None or creates_gated(live) or not why:
        return
    old = {_learner(workload, one.pod) for one in own if is_outdated(one.pod, live)}
    waiting = len(old - {f"{workload.pool}/{index}" for index in workload.held})
    if waiting:
        text = f"{waiting} of {workload.desired} learners of {workload.pool} do not have the new template yet: {why}"
        yield Cause(Reason.ROLLOUT_WAITING, text)


def waiting_learners(
    workloads: Iterable[PoolWorkload], looked: PodList, present: frozenset[str] | None, now: datetime
) -> dict[PoolKey, Waiting]:
    """The learners without a node of each elastic pool that has such, whether or not it has its minimum.

    ``present`` is that of `Known`.
    """
    found = {}
    for workload, own in _with_pods(workloads, looked):
        # One that is given up waits for no node.
        problems = _problems(workload, own, looked, Spared(present, workload.out_learners), now)
        without = [problem for problem in problems if has_no_node(problem)]
        if workload.minimum is not None and without:
            causes = _grouped(without, _counted(workload))
            found[workload.pool] = Waiting(len(without), joined(gravest_first(causes)))
    return found


def has_no_node(problem: PodProblem) -> bool:
    """Whether a pod does not run because it has no node, or none that responds."""
    return problem.node_silent or problem.reason in _NO_NODE


def without_waiting(workload: PoolWorkload, problems: Sequence[PodProblem], lost: int) -> list[PodProblem]:
    """The ``problems`` of a pool's pods, without those of pods that an elastic pool can do without.

    A pod that waits for a node, was evicted, or was on a node that has gone costs the job nothing but its work. Every
    other problem (an image, a crash, a volume) is one on any node, so it is reported however many learners the pool
    has. If fewer than its minimum have a node, all of them count. ``lost`` more pods are on nodes that do not respond.
    Neither are of learners that are given up or held back.
    """
    others = [problem for problem in problems if not has_no_node(problem)]
    without_node = lost + len(problems) - len(others)
    return others if workload.can_do_without(without_node) else list(problems)


def _with_pods(workloads: Iterable[PoolWorkload], looked: PodList) -> Iterator[tuple[PoolWorkload, list[PodObserved]]]:
    """The pools whose set exists, each with its pods."""
    pods: dict[str, list[PodObserved]] = {}
    for observed in looked.pods:
        pods.setdefault(_owner(observed.pod), []).append(observed)
    for workload in workloads:
        if workload.live is not None:
            yield workload, pods.get(str(workload.live["metadata"].get("uid", "")), [])


def _problems(
    workload: PoolWorkload, own: list[PodObserved], looked: PodList, known: Spared, now: datetime
) -> list[PodProblem]:
    """One for each learner that has one: of several pods of a learner the first to end, since that ends the others."""
    text = f"only some of its {workload.nodes} pods find a node, so none of them keeps one, and it is tried again"
    found = {f"{workload.pool}/{index}": [PodProblem(Reason.UNSCHEDULABLE, text)] for index in workload.apart}
    spared = known.spared | found.keys()
    for observed in own:
        learner = _learner(workload, observed.pod)
        problem = with_claims(pod_problem(observed, now), observed, looked.events)
        problem = problem or _missing(observed, learner, looked, known, now)
        if problem is not None and learner not in spared:
            found.setdefault(learner, []).append(_named(workload, observed.pod, problem))
    return [min(problems, key=_first) for problems in found.values()]


def _first(problem: PodProblem) -> tuple[int, str]:
    return gravity(problem.reason), problem.ended_at or _NEVER


def _named(workload: PoolWorkload, pod: Object, problem: PodProblem) -> PodProblem:
    index = index_of(pod)
    if workload.nodes == 1 or index is None:
        return problem
    return replace(problem, where=f"pod {pod['metadata']['name']} of {workload.name_of(index)}")


def _counted(workload: PoolWorkload) -> str:
    # A job that has ended needs none.
    whole = f" of {workload.desired} learners" if workload.desired else " learner(s)"
    fewest = "" if workload.minimum is None else f" (minimum {workload.minimum})"
    return f"{{count}}{whole} of {workload.pool}{fewest}"


def syncer_pod_causes(deployment: Object | None, own: list[PodObserved], looked: PodList, now: datetime) -> list[Cause]:
    """The causes that keep the syncer's pod from running; ``own``: its pods."""
    problems = [problem for observed in own if (problem := pod_problem(observed, now)) is not None]
    problems += [PodProblem(Reason.EVICTED, why) for one in own if (why := evicted_by(one.pod))]
    causes = [replace(cause, message=cause.message + _outranked(own, looked)) for cause in _grouped(problems, "syncer")]
    # The Deployment reports on its own that its ReplicaSet may not create pods.
    conditions = ((deployment or {}).get("status") or {}).get("conditions") or ()
    failures = [one for one in conditions if (one.get("type"), one.get("status")) == ("ReplicaFailure", "True")]
    causes += [_not_created("the syncer's pod", str(failure.get("message", ""))) for failure in failures]
    return causes


def _outranked(syncers: list[PodObserved], looked: PodList) -> str:
    """What to add to the syncer's problem if learners of the job could have taken its place; empty: they could not."""
    learners = [one for one in looked.pods if component(one.pod) == labels.LEARNER and not one.cluster]
    highest = max((_priority(one.pod) for one in learners), default=0)
    own = min((_priority(one.pod) for one in syncers), default=highest)
    if highest <= own:
        return ""
    return (
        f"; learners of this job have the priority {highest} and the syncer {own}, so they can displace it: set "
        "spec.syncer.podTemplate.spec.priorityClassName"
    )


def _priority(pod: Object) -> int:
    """Of its PriorityClass, as the API server has written it into the pod."""
    found = (pod.get("spec") or {}).get("priority")
    return found if isinstance(found, int) else 0


def _grouped(problems: list[PodProblem], who: str) -> Iterator[Cause]:
    by_reason: dict[Reason, list[PodProblem]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem)
    for reason, ones in by_reason.items():
        # The most frequent detail; of equally frequent ones the alphabetically first, so that the message is stable.
        details = Counter(one.detail for one in ones)
        detail = min(details.items(), key=lambda item: (-item[1], item[0]))[0]
        where = min(one.where for one in ones if one.detail == detail)
        words = f"{who.format(count=len(ones))} {_WORDS[reason]}"
        yield Cause(reason, ": ".join(filter(None, (words, where, detail))))


def _missing(observed: PodObserved, learner: str, looked: PodList, known: Spared, now: datetime) -> PodProblem | None:
    pod, since = observed.pod, running_since(observed.pod)
    if known.present is None or learner in known.present or since is None:
        return None
    runs_seconds, ready = (now - since).total_seconds(), is_ready(pod)
    was_joined = known.cut_off.get(learner, math.inf) < runs_seconds
    if (ready or runs_seconds < JOIN_SECONDS) and not was_joined:
        return None
    if ready and pod["metadata"].get("deletionTimestamp"):
        return None  # it has left
    if is_on_silent_node(pod):
        return PodProblem(Reason.LEARNERS_MISSING, f"{node_of(pod) or 'its node'} does not respond", node_silent=True)
    # Kubernetes takes a pod for ready for a while after its node is gone.
    why = _CUT_OFF if was_joined else restricted(pod, looked.egress.get(observed.cluster, ()))
    return PodProblem(Reason.LEARNERS_MISSING, why, node_silent=ready)


def _forbidden(workload: PoolWorkload, events: Mapping[ChildKey, tuple[Object, ...]]) -> Iterator[Cause]:
    if not workload.short:
        return
    told = [
        (str(event.get("lastTimestamp") or event.get("eventTime") or ""), str(event.get("message", "")))
        for event in events.get(workload.key, ())
        if event.get("reason") == "FailedCreate"
    ]
    if told:
        yield _not_created(f"pods of {workload.pool}", max(told)[1])


def _not_created(what: str, message: str) -> Cause:
    # 'create Pod NAME in StatefulSet NAME failed error: pods "NAME" is forbidden: CAUSE': names change, the cause not.
    cause = _FORBIDDEN_POD.sub("", one_line(message.rpartition("failed error: ")[2]))
    return Cause(Reason.PODS_FORBIDDEN, f"{what} cannot be created: {cause}")


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("uid", "")) for owner in owners if owner.get("controller")), "")


def _learner(workload: PoolWorkload, pod: Object) -> str:
    index = index_of(pod)
    return "" if index is None else workload.learner_of(index)
