"""Every condition of a job, and every reason that one can have. When a reason applies is decided elsewhere."""

from enum import StrEnum
from types import MappingProxyType

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
    NO_IMAGE = "NoImage"
    NAME_TAKEN = "NameTaken"
    VOLUME_RETAINED = "VolumeRetained"
    APPLY_REFUSED = "ApplyRefused"

    VOLUME_LOST = "VolumeLost"
    VOLUME_TERMINATING = "VolumeTerminating"
    VOLUME_PENDING = "VolumePending"
    CHECKPOINT_FAILING = "CheckpointFailing"
    SYNCER_NODE_LOST = "SyncerNodeLost"
    SYNCER_UNREACHABLE = "SyncerUnreachable"
    KUBECONFIG_UNUSABLE = "KubeconfigUnusable"
    DUPLICATE_CLUSTER = "DuplicateCluster"
    CLUSTER_UNSUITABLE = "ClusterUnsuitable"
    CLUSTER_UNTRUSTED = "ClusterUntrusted"
    CLUSTER_UNAUTHORIZED = "ClusterUnauthorized"
    CLUSTER_FORBIDDEN = "ClusterForbidden"
    CLUSTER_UNREACHABLE = "ClusterUnreachable"
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
    NODE_NOT_AVOIDED = "NodeNotAvoided"
    LOST_POD_KEPT = "LostPodKept"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    LEARNERS_GIVEN_UP = "LearnersGivenUp"
    LEARNERS_QUARANTINED = "LearnersQuarantined"
    LEARNERS_LEFT_OUT = "LearnersLeftOut"
    QUORUM_FOLLOWS = "QuorumFollows"
    LEARNERS_STALLED = "LearnersStalled"
    LEARNERS_MISSING = "LearnersMissing"
    REVOCATION_IGNORED = "RevocationIgnored"
    READMISSION_IGNORED = "ReadmissionIgnored"
    ROLLOUT_WAITING = "RolloutWaiting"
    TOKEN_EXPIRING = "TokenExpiring"  # noqa: S105  # a reason
    CLIENT_CERTIFICATE_EXPIRING = "ClientCertificateExpiring"
    BACKUP_FAILING = "BackupFailing"
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
    CHILDREN_LEFT = "ChildrenLeft"
    LOST_POD_REPLACED = "LostPodReplaced"
    LOST_POD_REMOVED = "LostPodRemoved"
    SYNCER_POD_RELEASED = "SyncerPodReleased"
    LEARNER_RELEASED = "LearnerReleased"
    NODE_AVOIDED = "NodeAvoided"
    LEARNER_MOVED = "LearnerMoved"
    LEARNER_READMITTED = "LearnerReadmitted"
    GIVING_UP_LOST = "GivingUpLost"
    FALLBACK_USED = "FallbackUsed"
    FALLBACK_LEFT = "FallbackLeft"
    IN_PROGRESS = "InProgress"
    AS_EXPECTED = "AsExpected"
