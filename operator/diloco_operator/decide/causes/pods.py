"""What keeps one pod from working, if anything does, from its status and its warning events. Pure.

Stages that pass within moments (being scheduled, pulled, started) are not problems. States between which kubelet
alternates (ErrImagePull, ImagePullBackOff) count as one problem.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_JOB_FAILED, EXIT_OK, EXIT_REFUSED
from diloco_operator.decide.observed import Object, PodObserved
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import last_line, one_line, parsed_time

SILENT_GRACE_SECONDS = 150.0
"""Most of a grace period that counts on a node that does not respond (ours): all of a small job's."""
SETTLING_SECONDS = 10.0
"""A node may need this long for a pod's volumes and sandbox; it retries failures in that time (ours)."""
CRASHES_OF_A_LOOP = 2
"""A container that is not ready and has this many restarts counts as crash-looping (ours)."""

_PULL = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError"}
_GATED = "SchedulingGated"
"""The reason for a pod that may not be scheduled yet (Kubernetes' schedulingGates)."""
_EXIT_REASONS = {EXIT_BAD_INPUT: Reason.CONFIGURATION_ERROR, EXIT_REFUSED: Reason.REFUSED}
"""Exit codes of diloco processes after which starting again does not help."""
_EXIT_JOB_OVER = (EXIT_OK, EXIT_JOB_FAILED)
"""The job is over. The syncer reports that too, and its report is decisive."""
_AFTER_CAUSE = re.compile(r" (?:preemption:|no new claims to deallocate,)")
"""What the scheduler adds to why no node fits: whether preemption would help. It repeats the nodes."""
_OF_PLUGIN = re.compile(r'running (?:\w+ plugin )?"(?P<plugin>\w+)"(?: \w+ plugin)?: ')
"""What the scheduler says before why one of its plugins has failed."""
_PULLING = re.compile(r'^(?:rpc error: code = \w+ desc = |failed to [a-z ]+ "[^"]*": )+')
"""The steps of a pull, each of which names the image again: the cause comes last, and must not be cut off."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: (ErrImagePull|ImagePullBackOff))?:? ?')


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why a pod does not work."""

    reason: Reason
    detail: str
    """One line; may be empty."""
    node_silent: bool = False
    """Kubernetes takes it for not ready because its node does not respond, and not because the pod says so."""
    ended_at: str = ""
    """When the container ended, if it did."""
    where: str = ""
    """Whose pod it is, of a learner of several nodes."""


def pod_problem(observed: PodObserved, now: datetime) -> PodProblem | None:
    """The first problem, in the order in which a pod starts up; None: none is known."""
    pod = observed.pod
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return None  # whether its node is lost: see `lost_pods`
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        detail = one_line(str(status.get("message", "")))
        return PodProblem(Reason.EVICTED, f"{status['reason']}: {detail}" if detail else str(status["reason"]))
    return _unscheduled(status) or next(_container_problems(observed), None) or _start_problem(observed, now)


def is_ready(pod: Object) -> bool:
    """Whether its Ready condition is true."""
    return _holds(pod, "Ready")


def never_ready(pod: Object) -> bool:
    """Whether it has not been ready so far: its Ready condition is as kubelet set it when it took the pod up."""
    since = parsed_time(_condition(pod, "Ready").get("lastTransitionTime"))
    begun = parsed_time(pod.get("status", {}).get("startTime"))
    if is_ready(pod):
        return False
    return since is None or begun is None or (since - begun).total_seconds() <= SETTLING_SECONDS


def running_since(pod: Object) -> datetime | None:
    """When the youngest of its containers was started; None unless all of them run."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    starts = [parsed_time(status.get("state", {}).get("running", {}).get("startedAt")) for status in statuses]
    known = [start for start in starts if start is not None]
    return max(known) if known and len(known) == len(starts) else None


def is_crash(ended: Object) -> bool:
    """Whether a container's end was neither wanted, nor for lack of memory, nor one after which a start cannot help."""
    problem = _crash(ended, looping=True)
    return problem is not None and problem.reason is Reason.CRASH_LOOPING


def is_on_silent_node(pod: Object) -> bool:
    """Whether its node does not respond.

    Kubelet sets both conditions alike, but for a readiness gate, which it gives as the reason. The node lifecycle
    controller sets only Ready, once kubelet is not heard of, and gives none.
    """
    ready = _condition(pod, "Ready")
    return ready.get("status") == "False" and not ready.get("reason") and _holds(pod, "ContainersReady")


def node_of(pod: Object) -> str:
    """The name of its node; empty: it has none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def evicted_by(pod: Object) -> str:
    """What has evicted a pod that is ending, and from where: a drain, preemption, a taint; empty: nothing has.

    On a node that does not respond it cannot end, whatever has evicted it.
    """
    told = _condition(pod, "DisruptionTarget")
    leaves = pod["metadata"].get("deletionTimestamp") and told.get("status") == "True"
    if not leaves or is_on_silent_node(pod):
        return ""
    return f"{one_line(str(told.get('message') or told.get('reason')))} ({node_of(pod) or 'its node'})"


def is_lost(pod: Object, now: datetime, after_seconds: float) -> bool:
    """Whether it is being deleted, but exists so long after its grace period that its node no longer responds."""
    return seconds_until_lost(pod, now, after_seconds) <= 0


def seconds_until_lost(pod: Object, now: datetime, after_seconds: float) -> float:
    """How long a pod that is being deleted still has before it counts as lost; infinite for others.

    A node that does not respond is not given the time that a large checkpoint may take.
    """
    # The deletion's time is when its grace period ends (ObjectMeta.deletionTimestamp).
    due = parsed_time(pod["metadata"].get("deletionTimestamp"))
    if due is None:
        return float("inf")
    grace_seconds = pod["metadata"].get("deletionGracePeriodSeconds") or 0
    too_long = max(0.0, grace_seconds - SILENT_GRACE_SECONDS) if is_on_silent_node(pod) else 0.0
    return after_seconds - too_long - (now - due).total_seconds()


def _condition(pod: Object, type_: str) -> Object:
    found = pod.get("status", {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == type_), {})


def _holds(pod: Object, type_: str) -> bool:
    return _condition(pod, type_).get("status") == "True"


def _unscheduled(status: Object) -> PodProblem | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == _GATED:
                return None  # the controller that set the gate (a queue) removes it when it is the pod's turn
            message = _AFTER_CAUSE.split(str(condition.get("message", "")))[0]
            plugin = _OF_PLUGIN.match(message)
            detail = one_line(message if plugin is None else message[plugin.end() :])
            binding = plugin is not None and plugin["plugin"] == "VolumeBinding"
            volume = binding or "persistentvolumeclaim" in detail.lower()
            return PodProblem(Reason.VOLUME_PENDING if volume else Reason.UNSCHEDULABLE, detail.removesuffix("."))
    return None


def is_unschedulable(pod: Object) -> bool:
    """Whether the scheduler finds no node for a pod, and it is neither held back nor waits for a volume."""
    problem = _unscheduled(pod.get("status", {}))
    return (
        problem is not None and problem.reason is Reason.UNSCHEDULABLE and not pod["metadata"].get("deletionTimestamp")
    )


def unschedulable_since(pod: Object) -> datetime | None:
    """When the scheduler first found no node for a pod; None: it is not unschedulable, or that is not known."""
    return parsed_time(_condition(pod, "PodScheduled").get("lastTransitionTime")) if is_unschedulable(pod) else None


def _container_problems(observed: PodObserved) -> Iterator[PodProblem]:
    status = observed.pod.get("status", {})
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        problem = _container_problem(container, observed.events)
        if problem is not None:
            yield problem


def _container_problem(container: Object, events: tuple[Object, ...]) -> PodProblem | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in _PULL:
        image = str(container.get("image", ""))
        return PodProblem(Reason.IMAGE_PULL_FAILED, f"{image}: {_pull_cause(reason, message, events)}")
    if reason in _CONFIG:
        return PodProblem(Reason.POD_NOT_STARTED, one_line(message) or reason)
    if container.get("ready"):
        return None
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    looping = reason == "CrashLoopBackOff" or int(container.get("restartCount") or 0) >= CRASHES_OF_A_LOOP
    problem = _crash(ended or {}, looping=looping)
    return None if problem is None or not ended else replace(problem, ended_at=str(ended.get("finishedAt") or ""))


def _pull_cause(reason: str, message: str, events: tuple[Object, ...]) -> str:
    # ErrImagePull has the cause, ImagePullBackOff only in newer clusters; the event has it in all of them.
    told = _newest(events, "Failed", "Failed to pull image")
    if told:
        return one_line(_PULLING.sub("", told.partition(": ")[2] or told))
    return one_line(_PULLING.sub("", _BACK_OFF.sub("", message))) or reason


def _crash(ended: dict[str, Any], *, looping: bool) -> PodProblem | None:
    code, line = int(ended.get("exitCode") or 0), last_line(str(ended.get("message") or ""))
    if ended.get("reason") == "OOMKilled":
        return PodProblem(Reason.OUT_OF_MEMORY, "killed at its memory limit")
    if code in _EXIT_JOB_OVER:
        return None
    if code in _EXIT_REASONS:
        return PodProblem(_EXIT_REASONS[code], line or f"exit code {code}")
    if not looping:
        # A single restart is not a loop.
        return None
    if code > 128:
        # A shell's and container runtime's convention: 128 and the signal's number.
        line = f"signal {code - 128}: {line}" if line else f"signal {code - 128}"
        return PodProblem(Reason.CRASH_LOOPING, f"ended by {line}")
    return PodProblem(Reason.CRASH_LOOPING, f"exit code {code}: {line}" if line else f"exit code {code}")


def _start_problem(observed: PodObserved, now: datetime) -> PodProblem | None:
    """Why no container of a scheduled pod starts; only events tell."""
    scheduled_at = parsed_time(_condition(observed.pod, "PodScheduled").get("lastTransitionTime"))
    if scheduled_at is not None and (now - scheduled_at).total_seconds() < SETTLING_SECONDS:
        # Kubelet often finds a ConfigMap or Secret only at the second try, half a second later.
        return None
    if _holds(observed.pod, "PodReadyToStartContainers"):
        # The volumes are mounted and the sandbox exists. Events of earlier failures are kept for an hour.
        return None
    statuses = observed.pod.get("status", {}).get("containerStatuses") or []
    if any("waiting" not in (status.get("state") or {"waiting": {}}) for status in statuses):
        return None
    for event_reason, reason in (
        ("FailedMount", Reason.POD_NOT_STARTED),
        ("FailedAttachVolume", Reason.POD_NOT_STARTED),
        ("FailedCreatePodSandBox", Reason.POD_NOT_STARTED),
    ):
        told = _newest(observed.events, event_reason, "")
        if told:
            return PodProblem(reason, one_line(told))
    return None


def _newest(events: tuple[Object, ...], reason: str, begins: str) -> str:
    """The latest message of that reason; empty: none."""
    found = [
        (str(event.get("lastTimestamp") or event.get("eventTime") or ""), str(event.get("message", "")))
        for event in events
        if event.get("reason") == reason and str(event.get("message", "")).startswith(begins)
    ]
    return max(found, default=("", ""))[1]
