"""Every reason that a condition of a job can have: what it means and what to do about it.

Conditions, events and the tables in docs/operations.md all take their text from here. When a reason applies is decided
elsewhere.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

CONDITION_MEANINGS = MappingProxyType(
    {
        "Ready": (
            "The syncer answers and at least `sync.quorum` learners train, or all that are left if learners were given "
            "up. Unknown while the syncer's pod is ready but does not answer the operator: learners may still train."
        ),
        "Progressing": "Merges advance, or training is over and the final model is evaluated or exported.",
        "Degraded": (
            "A learner, the syncer or its volume has a problem. Training may continue all the same. The message names "
            "the pool, how many of its learners are affected, and each cause; the reason is that of the most serious."
        ),
        "Suspended": "The job was suspended and none of its pods is left.",
        "Complete": "The token budget is merged and the model is on the syncer's volume. Final.",
        "Failed": "The job has ended without being complete. Final.",
    }
)
"""Every condition type, in the order in which a job lists them, and when it is True."""


class Reason(StrEnum):
    """The values of a condition's ``reason``. Those that Degraded can have are ordered from most to least serious."""

    INVALID_SPEC = "InvalidSpec"
    REMOTE_CLUSTER_UNSUPPORTED = "RemoteClusterUnsupported"
    NO_IMAGE = "NoImage"
    NAME_TAKEN = "NameTaken"
    APPLY_REFUSED = "ApplyRefused"

    VOLUME_LOST = "VolumeLost"
    VOLUME_TERMINATING = "VolumeTerminating"
    VOLUME_PENDING = "VolumePending"
    CHECKPOINT_FAILING = "CheckpointFailing"
    SYNCER_UNREACHABLE = "SyncerUnreachable"
    CONFIGURATION_ERROR = "ConfigurationError"
    REFUSED = "Refused"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    MOUNT_FAILED = "MountFailed"
    SANDBOX_FAILED = "SandboxFailed"
    PODS_FORBIDDEN = "PodsForbidden"
    UNSCHEDULABLE = "Unschedulable"
    CRASH_LOOPING = "CrashLooping"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    LEARNERS_GIVEN_UP = "LearnersGivenUp"
    LEARNERS_LEFT_OUT = "LearnersLeftOut"
    QUORUM_FOLLOWS = "QuorumFollows"
    LEARNERS_STALLED = "LearnersStalled"
    LEARNERS_MISSING = "LearnersMissing"
    ROLLOUT_WAITING = "RolloutWaiting"
    TAPE_FAILING = "TapeFailing"
    LINK_TOO_THIN = "LinkTooThin"
    MERGES_TOO_SLOW = "MergesTooSlow"
    ROUND_TOO_LONG = "RoundTooLong"
    STALENESS_BOUND_TOO_LOW = "StalenessBoundTooLow"
    OVERLAP_TOO_SHORT = "OverlapTooShort"

    NO_PROGRESS = "NoProgress"
    QUORUM_MISSING = "QuorumMissing"
    WAITING_FOR_SYNCER = "WaitingForSyncer"
    WAITING_FOR_LEARNERS = "WaitingForLearners"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    EXPORTING = "Exporting"

    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"

    BUDGET_REACHED = "BudgetReached"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    TRAINING_FAILED = "TrainingFailed"
    IN_PROGRESS = "InProgress"
    AS_EXPECTED = "AsExpected"


@dataclass(frozen=True, slots=True)
class Guide:
    """What a reason means, and what to do about it."""

    severity: Literal["Normal", "Warning"]
    """The type of the event that reports it."""
    meaning: str
    action: str
    """What to do. Empty: nothing."""


def _normal(meaning: str, action: str = "") -> Guide:
    return Guide("Normal", meaning, action)


def _warning(meaning: str, action: str) -> Guide:
    return Guide("Warning", meaning, action)


_R = Reason
GUIDE: MappingProxyType[Reason, Guide] = MappingProxyType(
    {
        _R.INVALID_SPEC: _warning(
            "The manifest has an error that the API server did not catch; the message names each field. The operator "
            "creates nothing. What runs from an earlier, valid spec keeps running.",
            "Fix the field. Fields that pods are made from can be changed once the job is suspended (`suspend: true`). "
            "Do not delete the job for this: that deletes its model. `suspend`, the deadline and the time to live "
            "still work.",
        ),
        _R.REMOTE_CLUSTER_UNSUPPORTED: _warning(
            "A region names another cluster (`regions[].cluster`), which this version does not support. The operator "
            "creates nothing.",
            "Remove `cluster`.",
        ),
        _R.NO_IMAGE: _warning(
            "The syncer or a pool has no trainer image. The operator creates nothing.",
            "Set `spec.image`, or install the operator with a default image (`--set trainer.image.repository=...`).",
        ),
        _R.NAME_TAKEN: _warning(
            "An object that does not belong to this job has a name that the job needs: it has another owner, or it is "
            "left from an earlier job of the same name that is still being deleted. The operator leaves it alone and "
            "creates nothing new.",
            "If you have just deleted a job of the same name, wait: this clears on its own. Otherwise delete or rename "
            "that object, or apply the job under another name.",
        ),
        _R.APPLY_REFUSED: _warning(
            "The API server rejected one of the job's objects. The message quotes it: an invalid quantity, a quota, an "
            "admission policy, a permission that the operator lacks.",
            "Fix what the message says. The operator retries every 30 s, and at once when the job changes.",
        ),
        _R.VOLUME_LOST: _warning(
            "The claim that held the training, or the volume behind it, is gone, and the checkpoints with it; or "
            "another claim has its name. The operator starts no syncer, because it would silently train from zero.",
            "See 'The volume is lost' below.",
        ),
        _R.VOLUME_TERMINATING: _warning(
            "Someone has deleted the syncer's claim. It stays until the syncer's pod ends.",
            "Do not stop that pod. Keep the volume (`persistentVolumeReclaimPolicy: Retain`) and back it up: see 'The "
            "volume is lost' below.",
        ),
        _R.VOLUME_PENDING: _warning(
            "A PersistentVolumeClaim, the syncer's or one that a pool mounts, is missing or not bound, so its pods "
            "cannot start.",
            "`kubectl describe pvc`. Usual causes: the StorageClass (`spec.syncer.storage.className`) does not exist, "
            "there is no default StorageClass, or the claim has another name. Create what is missing. The syncer's "
            "class cannot be changed: for another one, apply a new job.",
        ),
        _R.CHECKPOINT_FAILING: _warning(
            "The syncer cannot write checkpoints. Training continues, but a crash now loses everything since the last "
            "good checkpoint.",
            "Usually the volume is full: see 'The volume is full' below.",
        ),
        _R.SYNCER_UNREACHABLE: _warning(
            "The syncer does not answer the operator. Progress and restarts in the status are the last known values. "
            "Learners keep training on their own up to `sync.maxStalenessSteps`, then pause. Once the syncer's pod has "
            "not been ready for ten minutes, the phase is Pending.",
            "`kubectl logs deploy/JOB-syncer`. If its pod is ready, check whether a NetworkPolicy blocks port 8080 "
            "from the operator's namespace.",
        ),
        _R.CONFIGURATION_ERROR: _warning(
            "A container exited with code 2: its manifest, data, a file or an address is wrong. The message quotes its "
            "last line. Kubernetes restarts it, with growing pauses, in case the cause is fixed outside the job.",
            "Fix what the message names: mount the data, correct a ConfigMap. A pool's image, `env` and volumes can be "
            "changed while the job is suspended.",
        ),
        _R.REFUSED: _warning(
            "The syncer refused a learner (exit code 3): its certificate is for another job, another pod has its id, "
            "or the job has no such learner.",
            "Look for a second pod or process with this learner's id. After scaling up, this clears within seconds.",
        ),
        _R.OUT_OF_MEMORY: _warning(
            "A container was killed for using more memory than its limit.",
            "Raise `resources.limits.memory` of the pool or of `syncer`; both can be changed while the job runs. Or "
            "lower the pool's `batchSize`, which needs a new job.",
        ),
        _R.IMAGE_PULL_FAILED: _warning(
            "An image cannot be pulled: its name or tag is wrong, access is denied, or the registry is down.",
            "Check the image's name and `imagePullSecrets`. A missing pull secret can be created at any time; kubelet "
            "retries on its own.",
        ),
        _R.CONTAINER_CONFIG_ERROR: _warning(
            "A container cannot be created from its specification: usually a Secret or ConfigMap that `env` refers to "
            "is missing, or the image runs as root.",
            "Create what the message names; kubelet retries on its own.",
        ),
        _R.MOUNT_FAILED: _warning(
            "A volume cannot be mounted: a Secret, ConfigMap or claim is missing, or a disk is still attached to "
            "another node.",
            "Create what the message names. If it says 'Multi-Attach', the old node still holds the disk: see 'A node "
            "is lost' below.",
        ),
        _R.SANDBOX_FAILED: _warning(
            "The node cannot create the pod's sandbox: the cause is the network plugin, the RuntimeClass or the node "
            "itself.",
            "`kubectl describe pod POD`. If only one node fails, cordon it.",
        ),
        _R.PODS_FORBIDDEN: _warning(
            "Pods of a pool or of the syncer may not be created: a quota, Pod Security, a missing PriorityClass or an "
            "admission webhook prevents it.",
            "Fix what the message says. The pods' controller retries, with pauses of up to several minutes.",
        ),
        _R.UNSCHEDULABLE: _warning(
            "No node can take the pod: not enough of a resource, a selector that matches no node, or a taint. The job "
            "trains with its other learners.",
            "If nodes are being added: nothing. Otherwise lower the pool's `learners` or `resources`, or fix nodes.",
        ),
        _R.CRASH_LOOPING: _warning(
            "A container has exited several times with an error that a restart may fix. The message quotes its last "
            "line.",
            "`kubectl logs POD --previous`.",
        ),
        _R.NODE_LOST: _warning(
            "A pod is being deleted but its node does not respond, so Kubernetes keeps the pod and starts no "
            "replacement.",
            "See 'A node is lost' below. Force deletion is safe for learners only.",
        ),
        _R.EVICTED: _warning(
            "A pod was evicted from its node: disk or memory pressure, or preemption by a pod of higher priority.",
            "Nothing: it restarts elsewhere. If it happens often, raise the requests to what the pod uses, or set a "
            "`priorityClassName`.",
        ),
        _R.LEARNERS_GIVEN_UP: _warning(
            "A learner failed more often than `failurePolicy.maxRestartsPerLearner` allows and may not rejoin.",
            "Find out why it failed. It stays out for the rest of this job; scale its pool up to add learners.",
        ),
        _R.LEARNERS_LEFT_OUT: _warning(
            "Merges keep leaving a learner out, because its outer gradients are not finite or are far larger than the "
            "others'. Its work is lost; the others' work is merged. This clears once each fragment has been merged "
            "with it.",
            "Check that learner's log, data and machine (faulty memory, a faulty accelerator). Delete its pod so that "
            "it loads the model again; if it is left out again, cordon the node.",
        ),
        _R.QUORUM_FOLLOWS: _warning(
            "Learners were given up and fewer than `sync.quorum` are left. Those that are left make the quorum, so "
            "merges continue with fewer members than the manifest asks for.",
            "Find out why they were given up. Scale a pool up: the quorum rises with the number of learners. To make "
            "the job end instead, set `failurePolicy.minimumLearners` (needs a new job).",
        ),
        _R.LEARNERS_STALLED: _warning(
            "Learners are connected but make no steps: their data is stuck or an accelerator hangs. Merges continue "
            "without them.",
            "`kubectl logs POD`. If the pod does not recover, delete it: a new one takes its place.",
        ),
        _R.LEARNERS_MISSING: _warning(
            "Learner pods run but have not joined the syncer: they are still loading, or cannot connect.",
            "`kubectl logs POD`. Check whether a NetworkPolicy or a service mesh blocks port 29400 of JOB-syncer.",
        ),
        _R.ROLLOUT_WAITING: _warning(
            "`resources` of a pool were changed, and one of its pods is not ready and keeps the others from being "
            "updated: a StatefulSet updates its pods one at a time, from the last to the first.",
            "Fix that pod (see the other causes). Or run `kubectl delete pod` on those that wait: each comes back with "
            "the new template.",
        ),
        _R.TAPE_FAILING: _warning(
            "The syncer's tape (its record of decisions, for `diloco replay`) is incomplete. Training is not affected.",
            "Check the volume: see 'The volume is full' below.",
        ),
        _R.LINK_TOO_THIN: _warning(
            "Fragments need more of a link than it can carry, measured over some time: merges come later than "
            "scheduled, or without the learners behind that link. Training continues.",
            "The message lists remedies, each enough alone: a setting of `sync` (needs a new job), a faster link, "
            "longer steps. See [links.md](links.md).",
        ),
        _R.MERGES_TOO_SLOW: _warning(
            "The syncer takes longer to merge all fragments than an interval lasts.",
            "Give the syncer more cores (`syncer.resources`), or do what the message says.",
        ),
        _R.ROUND_TOO_LONG: _warning(
            "Fragments are in flight for more than half an interval, usually because a learner is far away, so most of "
            "the work on them is lost.",
            "The message lists remedies; usually a longer `sync.interval` (needs a new job). See [links.md](links.md).",
        ),
        _R.STALENESS_BOUND_TOO_LOW: _warning(
            "Rounds take longer than `sync.maxStalenessSteps` leaves beyond the interval, so learners pause.",
            "Raise it to the value in the message (needs a new job), unless you want lock-step.",
        ),
        _R.OVERLAP_TOO_SHORT: _warning(
            "`sync.overlap` is a number and allows fewer fragments in flight than the schedule needs on these links.",
            "Remove it: `Auto` finds the number (needs a new job).",
        ),
        _R.NO_PROGRESS: _warning(
            "Learners train, but nothing has been merged for ten minutes or more.",
            "`kubectl diloco status JOB` shows whether fragments are in flight. Very long steps or a very slow link "
            "explain it; otherwise read the syncer's log.",
        ),
        _R.QUORUM_MISSING: _warning(
            "Fewer learners train than the quorum requires (`sync.quorum`, or as many as are left), so nothing is "
            "merged.",
            "Degraded says why the others do not train. Or scale a pool up.",
        ),
        _R.WAITING_FOR_SYNCER: _normal(
            "The syncer's pod is not ready yet: it waits for a node, pulls its image, starts, or loads a checkpoint.",
            "If this lasts, Degraded says why.",
        ),
        _R.WAITING_FOR_LEARNERS: _normal(
            "The syncer runs but no learner trains yet: they wait for nodes, pull their image, start, or load the "
            "model.",
            "If this lasts, Degraded says why.",
        ),
        _R.TRAINING: _normal(
            "Learners train and merges advance.",
        ),
        _R.EVALUATING: _normal(
            "The token budget is merged; the last rounds finish and the final model is evaluated.",
        ),
        _R.EXPORTING: _normal(
            "Training is over and the syncer writes the model to its volume.",
            "If this lasts, the volume may be full: read the syncer's log.",
        ),
        _R.SUSPENDING: _normal(
            "Learners hand in their work and stop; then the syncer writes a checkpoint and stops.",
            "If this lasts more than five minutes, see 'A node is lost' below.",
        ),
        _R.SUSPENDED: _normal(
            "No pod is left. The checkpoint is on the syncer's volume.",
            "Resume with `suspend: false`.",
        ),
        _R.RESUMED: _normal(
            "The job was suspended and continues from its checkpoint.",
        ),
        _R.NOT_SUSPENDED: _normal(
            "The job has not been suspended.",
        ),
        _R.BUDGET_REACHED: _normal(
            "`training.tokens` tokens are merged and the model is exported; `status.model` says where.",
            "Copy the model before `ttlSecondsAfterFinished` deletes the job and its volume.",
        ),
        _R.DEADLINE_EXCEEDED: _warning(
            "`activeDeadlineSeconds` have passed since the job was started or last resumed.",
            "The last checkpoint is on the syncer's volume. A failed job is not started again: apply a new one with a "
            "longer deadline.",
        ),
        _R.TRAINING_FAILED: _warning(
            "The syncer ended the training. The message gives its reason: usually fewer than "
            "`failurePolicy.minimumLearners` learners are left.",
            "Find out why learners were given up (restarts, logs), then apply a new job.",
        ),
        _R.IN_PROGRESS: _normal(
            "The job has not ended.",
        ),
        _R.AS_EXPECTED: _normal(
            "Nothing to report.",
        ),
    }
)
"""What each reason means."""

UNANNOUNCED = frozenset({_R.IN_PROGRESS, _R.AS_EXPECTED, _R.NOT_SUSPENDED})
"""Reasons that create no event: they say that something is not the case."""
