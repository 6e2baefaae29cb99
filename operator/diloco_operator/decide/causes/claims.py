"""What the claims that a pod mounts have to do with its not starting. Pure.

The pod's own status names no claim, and says little about why a volume is not there. The events about its claims do.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from diloco.spec.words import shortlist
from diloco_operator.decide.causes.pods import PodProblem
from diloco_operator.decide.causes.volume import PROVISIONING_REASONS
from diloco_operator.decide.objects.workloads import CLAIM
from diloco_operator.decide.observed import ChildKey, Object, PodObserved
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line, parsed_time

Events = Mapping[ChildKey, tuple[Object, ...]]

_ELSEWHERE = ("volume node affinity conflict", "PersistentVolume's node affinity")
"""What the scheduler says of nodes from which a bound volume cannot be reached."""
_OF_A_CLAIM = re.compile(r'"pvc-')
"""Part of the names of volumes that were made for claims."""


def claims_of(pod: Object) -> Iterator[str]:
    """The names of the claims that a pod mounts."""
    return (name for _, name in _volumes(pod))


def with_claims(problem: PodProblem | None, observed: PodObserved, events: Events) -> PodProblem | None:
    """A pod's own ``problem`` with what is known of its claims. ``events``: warnings about claims, by their keys."""
    pod = observed.pod
    names = [name for name in claims_of(pod) if name]
    if not names or pod["metadata"].get("deletionTimestamp"):
        return problem
    if not (pod.get("spec") or {}).get("nodeName"):
        return _without_a_node(problem, observed, names, events)
    if problem is not None and problem.reason == Reason.POD_NOT_STARTED and _is_about_claims(problem.detail, pod):
        return replace(problem, detail=f"{problem.detail} (claim {shortlist(names)})")
    return problem


def _without_a_node(
    problem: PodProblem | None, observed: PodObserved, names: list[str], events: Events
) -> PodProblem | None:
    reason, detail = (None, "") if problem is None else (problem.reason, problem.detail)
    if reason == Reason.UNSCHEDULABLE and any(text in detail for text in _ELSEWHERE):
        told = f"{detail}; the volume of claim {shortlist(names)} cannot be reached from other nodes"
        return PodProblem(Reason.UNSCHEDULABLE, told)
    # A pod that waits for a volume may have no condition yet; one that waits for something else too has others.
    if reason not in (None, Reason.VOLUME_PENDING) and "volume" not in detail.lower():
        return problem
    for name in names:
        told = _newest(events.get(ChildKey(CLAIM, name, observed.cluster), ()), _created(observed.pod))
        if told:
            return PodProblem(Reason.VOLUME_PENDING, f"claim {name} is pending: {one_line(told)}")
    return problem


def _newest(events: tuple[Object, ...], since: datetime | None) -> str:
    """The latest reason for which there is no volume; events from before the pod may be of an earlier claim."""
    told = [
        (at, str(event.get("message", "")))
        for event in events
        if event.get("reason") in PROVISIONING_REASONS
        and (at := parsed_time(event.get("lastTimestamp") or event.get("eventTime"))) is not None
        and (since is None or at >= since)
    ]
    return max(told)[1] if told else ""


def _created(pod: Object) -> datetime | None:
    return parsed_time(pod["metadata"].get("creationTimestamp"))


def _is_about_claims(detail: str, pod: Object) -> bool:
    """Whether what kubelet says is about a claim's volume, and not about a Secret's."""
    named = (f"[{volume}" in detail or f'"{volume}"' in detail for volume, _ in _volumes(pod))
    return _OF_A_CLAIM.search(detail) is not None or any(named)


def _volumes(pod: Object) -> Iterator[tuple[str, str]]:
    """The volumes that are claims: each volume's name, and the claim's."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        own = str(volume.get("name", ""))
        if "persistentVolumeClaim" in volume:
            yield own, str((volume["persistentVolumeClaim"] or {}).get("claimName", ""))
        elif "ephemeral" in volume:
            # Named by Kubernetes.
            yield own, f"{pod['metadata'].get('name', '')}-{own}"
