"""Every reason that a condition of a job can have: what it means, and what whoever is on call does about it.

The one place: conditions, events and the table in docs/operations.md come from here. It must not know when a reason
applies.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

CONDITION_MEANINGS = MappingProxyType(
    {
        "Ready": (
            "The syncer answers and at least `sync.quorum` learners train, or all that are left where learners were "
            "given up. Unknown while the operator cannot ask a "
            "syncer whose pod is ready: learners may be training all the same."
        ),
        "Progressing": "Merges advance, or the last steps of a finished training are under way.",
        "Degraded": (
            "Some learner, the syncer or its volume has a problem. The job may well train on without it. The message "
            "names the pool, how many of its learners, and the cause; the reason is that of the gravest."
        ),
        "Suspended": "The job was suspended and none of its pods is left.",
        "Complete": "The budget of tokens is merged and the model is on the syncer's volume. Never undone.",
        "Failed": "The job has ended without being complete. Never undone.",
    }
)
"""Every condition type, in the order in which a job lists them, and when it is True."""


class Reason(StrEnum):
    """What a condition's ``reason`` may say. Those about one cause stand from the gravest to the mildest."""

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
    """What a reason tells its reader."""

    severity: Literal["Normal", "Warning"]
    """Of the event that announces it."""
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
            "The manifest has a mistake that the API server let pass; the message names each field. Nothing is "
            "created, and what runs of an earlier, valid spec is left running.",
            "Mend the field; what pods are made of can be changed once the job is suspended (`suspend: true`). Do not "
            "delete the job for it: its model goes with it. `suspend`, the deadline and the time to live work all the "
            "same.",
        ),
        _R.REMOTE_CLUSTER_UNSUPPORTED: _warning(
            "A region is in another cluster (`regions[].cluster`), which this version cannot do. Nothing is created.",
            "Leave `cluster` out.",
        ),
        _R.NO_IMAGE: _warning(
            "No trainer image is named for the syncer or for some pool. Nothing is created.",
            "Give `spec.image`, or install the operator with a default (`--set trainer.image.repository=...`).",
        ),
        _R.NAME_TAKEN: _warning(
            "An object has a name that this job needs and belongs to somebody else: another owner, or an earlier job "
            "of the same name that is still being cleaned up. It is not touched, and nothing new is created.",
            "After deleting a job of the same name: wait, it clears itself. Otherwise delete or rename that object, "
            "or give the job another name.",
        ),
        _R.APPLY_REFUSED: _warning(
            "The API server refused one of the job's objects; its words are in the message: a quantity that is none, "
            "a quota, an admission policy, a missing permission of the operator.",
            "Do what the message says. It is tried again every 30 s, and at once after the job changes.",
        ),
        _R.VOLUME_LOST: _warning(
            "The syncer's claim that the training is on, or the volume behind it, is gone, and with it the "
            "checkpoints; or another claim has its name. No syncer is started on it, so nothing begins from zero "
            "by itself.",
            "See 'The volume is lost' below.",
        ),
        _R.VOLUME_TERMINATING: _warning(
            "Somebody has deleted the syncer's claim. It is there for as long as the syncer's pod runs.",
            "Do not stop the pod. Have the volume kept (`persistentVolumeReclaimPolicy: Retain`) and back it up: see "
            "'The volume is lost' below.",
        ),
        _R.VOLUME_PENDING: _warning(
            "A PersistentVolumeClaim, the syncer's or one that a pool mounts, is not there or not bound, so its pods "
            "cannot start.",
            "`kubectl describe pvc`. Usual: no such StorageClass (`spec.syncer.storage.className`), no default one, a "
            "claim of another name. Create what is missing. The syncer's class cannot be changed: else make a new "
            "job.",
        ),
        _R.CHECKPOINT_FAILING: _warning(
            "The syncer cannot write checkpoints. It trains on, but a crash now costs everything since the last good "
            "one.",
            "Usually the volume is full: see 'The volume is full' below.",
        ),
        _R.SYNCER_UNREACHABLE: _warning(
            "The syncer does not answer the operator. Progress and restarts in the status are the last that were "
            "heard. Learners train on by themselves up to `sync.maxStalenessSteps`, then pause.",
            "`kubectl logs deploy/JOB-syncer`. If its pod is ready: is it a NetworkPolicy that keeps the operator's "
            "namespace from port 8080?",
        ),
        _R.CONFIGURATION_ERROR: _warning(
            "A container ended with exit code 2: its manifest, data, a file or an address is wrong. The message is "
            "its last line. It is started again, with pauses, in case the cause is mended from outside.",
            "Mend what the message names: mount the data, correct a ConfigMap. A pool's image, "
            "`env` and volumes can be changed while the job is suspended.",
        ),
        _R.REFUSED: _warning(
            "The syncer turned a learner away (exit code 3): its certificate is of another job, another pod has its "
            "id, or the job does not know it.",
            "Look for a second pod or process with this learner's id. After scaling up it clears within seconds.",
        ),
        _R.OUT_OF_MEMORY: _warning(
            "A container was killed for using more memory than its limit.",
            "Raise `resources.limits.memory` of the pool (of `syncer`): both may be changed while the job runs. Or "
            "lower the pool's `batchSize`, which needs a new job.",
        ),
        _R.IMAGE_PULL_FAILED: _warning(
            "An image cannot be pulled: a wrong name or tag, no access, a registry that is away.",
            "Check the image's name and `imagePullSecrets`. A missing pull secret can be created at any time; kubelet "
            "tries again by itself.",
        ),
        _R.CONTAINER_CONFIG_ERROR: _warning(
            "A container cannot be made from its specification: mostly a Secret or ConfigMap that `env` refers to is "
            "missing, or the image runs as root.",
            "Create what the message names; kubelet tries again by itself.",
        ),
        _R.MOUNT_FAILED: _warning(
            "A volume cannot be mounted: a missing Secret, ConfigMap or claim, or a disk still attached to another "
            "node.",
            "Create what the message names. 'Multi-Attach': the old node still holds the disk; see 'A node is lost' "
            "below.",
        ),
        _R.SANDBOX_FAILED: _warning(
            "The node cannot make the pod's sandbox: network plugin, RuntimeClass or the node itself.",
            "`kubectl describe pod`; cordon the node if it is the only one that fails.",
        ),
        _R.PODS_FORBIDDEN: _warning(
            "Pods of a set may not be created: quota, Pod Security, a missing PriorityClass or an admission webhook.",
            "Do what the message says. It is tried again by the set's controller, with pauses of up to some minutes.",
        ),
        _R.UNSCHEDULABLE: _warning(
            "No node fits: not enough of a resource, a selector that matches none, a taint. The job trains with the "
            "others.",
            "Nothing, if nodes are on their way. Otherwise lower the pool's `learners` or `resources`, or mend the "
            "nodes.",
        ),
        _R.CRASH_LOOPING: _warning(
            "A container has ended several times with an error that starting again may help. The message has its last "
            "line.",
            "`kubectl logs POD --previous`.",
        ),
        _R.NODE_LOST: _warning(
            "A pod is to go and its node does not answer, so Kubernetes keeps it and starts no other in its place.",
            "See 'A node is lost' below: force deletion is safe for learners, and for nothing else.",
        ),
        _R.EVICTED: _warning(
            "A pod was evicted from its node: disk or memory pressure, or preemption by a pod of higher priority.",
            "It is started elsewhere by itself. If it happens often: requests as high as what is used, a "
            "`priorityClassName`.",
        ),
        _R.LEARNERS_GIVEN_UP: _warning(
            "A learner failed more often than `failurePolicy.maxRestartsPerLearner` and is not let in again.",
            "Find out why it failed. It stays out for the rest of this job; scale its pool to have others.",
        ),
        _R.LEARNERS_LEFT_OUT: _warning(
            "Merges are made without a learner again and again, because what it brings is not finite or far larger "
            "than what the others bring. Its work is lost; theirs is merged. It ends once each fragment was merged "
            "with it.",
            "Look at that learner's log, data and machine (faulty memory, a faulty accelerator). Delete its pod, so "
            "that it loads the model anew; if it is told again, cordon the node.",
        ),
        _R.QUORUM_FOLLOWS: _warning(
            "Learners were given up, and fewer than `sync.quorum` are left: those that are left make the quorum, so "
            "merges go on with fewer members than the manifest asks for.",
            "Find out why they were given up. Scale a pool up: the quorum comes back with the learners. Who wants the "
            "job to end instead sets `failurePolicy.minimumLearners` (a new job).",
        ),
        _R.LEARNERS_STALLED: _warning(
            "Learners are connected and make no steps: stuck data, a hung accelerator. Merges go on without them.",
            "`kubectl logs` of such a pod. Delete the pod if it does not recover: a new one takes its place.",
        ),
        _R.LEARNERS_MISSING: _warning(
            "Pods of learners run and the syncer has not heard of them: they still load, or cannot connect.",
            "`kubectl logs` of such a pod. Does a NetworkPolicy or a service mesh keep it from port 29400 of "
            "JOB-syncer?",
        ),
        _R.ROLLOUT_WAITING: _warning(
            "`resources` of a pool were changed, and a pod of it that is not ready keeps the others from getting them: "
            "a set changes its pods one after the other, from the last to the first.",
            "Mend that pod (see the other causes). Or `kubectl delete pod` of those that wait: each comes back with "
            "the new template.",
        ),
        _R.TAPE_FAILING: _warning(
            "The syncer's tape (its record of decisions, for `diloco replay`) is incomplete. Training is not affected.",
            "Look at the volume: see 'The volume is full' below.",
        ),
        _R.LINK_TOO_THIN: _warning(
            "Fragments need more of a link than it can carry, as measured for a while: merges come later than the "
            "schedule says, or without the learners behind it. Training goes on.",
            "The message says what would do, each alone: a setting of `sync` (a new job), a faster link, longer steps. "
            "See [links.md](links.md).",
        ),
        _R.MERGES_TOO_SLOW: _warning(
            "The syncer takes longer to merge all fragments than an interval lasts.",
            "Give the syncer more cores (`syncer.resources`), or do what the message says.",
        ),
        _R.ROUND_TOO_LONG: _warning(
            "Fragments are under way for more than half an interval, mostly because a learner is far away, so most of "
            "the work on them is lost.",
            "The message says what would do; mostly a longer `sync.interval` (a new job). See [links.md](links.md).",
        ),
        _R.STALENESS_BOUND_TOO_LOW: _warning(
            "Rounds take longer than `sync.maxStalenessSteps` leaves beyond the interval, so learners stand still.",
            "Raise it to what the message says (a new job), unless lock-step is what is wanted.",
        ),
        _R.OVERLAP_TOO_SHORT: _warning(
            "`sync.overlap` is a number and lets fewer fragments be in flight than the schedule needs on these links.",
            "Leave it out: `Auto` finds the number by itself (a new job).",
        ),
        _R.NO_PROGRESS: _warning(
            "Learners train, and nothing has been merged for ten minutes or more.",
            "`kubectl diloco status JOB`: are fragments on their way? Very long steps or a very slow link explain it; "
            "else read the syncer's log.",
        ),
        _R.QUORUM_MISSING: _warning(
            "Fewer learners train than the quorum wants (`sync.quorum`, or as many as are left), so nothing is merged.",
            "See Degraded for why the others do not. Scale a pool up.",
        ),
        _R.WAITING_FOR_SYNCER: _normal(
            "The syncer's pod is not ready yet: it is being scheduled, pulled or started, or loads a checkpoint.",
            "If it lasts: Degraded says why.",
        ),
        _R.WAITING_FOR_LEARNERS: _normal(
            "The syncer serves and no learner trains yet: they are being scheduled, pulled or started, or load the "
            "model.",
            "If it lasts: Degraded says why.",
        ),
        _R.TRAINING: _normal("Learners train and merges advance."),
        _R.EVALUATING: _normal("The budget is merged; the last rounds end and the final model is evaluated."),
        _R.EXPORTING: _normal(
            "The training is over and the syncer writes the model to its volume.",
            "If it lasts: the volume may be full; read the syncer's log.",
        ),
        _R.SUSPENDING: _normal(
            "Learners hand in their work and stop, then the syncer writes a checkpoint and stops.",
            "If it lasts for more than five minutes: see 'A node is lost' below.",
        ),
        _R.SUSPENDED: _normal(
            "No pod is left. The checkpoint is on the syncer's volume.", "Resume with `suspend: false`."
        ),
        _R.RESUMED: _normal("The job was suspended before and goes on from its checkpoint."),
        _R.NOT_SUSPENDED: _normal("The job has not been suspended."),
        _R.BUDGET_REACHED: _normal(
            "`training.tokens` tokens are merged and the model is exported; `status.model` says where.",
            "Get the model out before `ttlSecondsAfterFinished` deletes the job and its volume.",
        ),
        _R.DEADLINE_EXCEEDED: _warning(
            "`activeDeadlineSeconds` have passed since the job was started or last resumed.",
            "The last checkpoint is on the syncer's volume. A failed job is not started again: apply a new one with a "
            "longer deadline.",
        ),
        _R.TRAINING_FAILED: _warning(
            "The syncer ended the training; its reason is in the message: mostly fewer learners than "
            "`failurePolicy.minimumLearners` are left.",
            "Find out why learners were given up (restarts, logs), then apply a new job.",
        ),
        _R.IN_PROGRESS: _normal("The job has not ended."),
        _R.AS_EXPECTED: _normal("Nothing to tell."),
    }
)
"""What each reason means."""

UNANNOUNCED = frozenset({_R.IN_PROGRESS, _R.AS_EXPECTED, _R.NOT_SUSPENDED})
"""Reasons of which no event is made: they say that something is not the case."""
