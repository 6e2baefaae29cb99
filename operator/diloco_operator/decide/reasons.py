"""Every condition of a job, and every reason that one can have. When a reason applies is decided elsewhere."""

from enum import StrEnum
from types import MappingProxyType

CONDITION_MEANINGS = MappingProxyType(
    {
        "Ready": (
            "The syncer answers and at least `sync.quorum` learners train, or all that are left if learners were given "
            "up; or the job is complete. Unknown while the syncer's pod is ready but does not answer the operator: "
            "learners may still train."
        ),
        "Progressing": "Merges advance, or training is over and the final model is evaluated or exported.",
        "Degraded": (
            "A learner, the syncer or its volume has a problem. Training may continue all the same. The message names "
            "the pool, how many of its learners are affected, and each cause; the reason is that of the most serious."
        ),
        "Suspended": "The job was suspended and none of its pods is left.",
        "Complete": (
            "The token budget is merged and the model is on the syncer's volume. Final unless `training.tokens` is "
            "raised."
        ),
        "Failed": "The job has ended without being complete. Final.",
    }
)
"""Every condition type, in the order in which a job lists them, and when it is True."""


class Reason(StrEnum):
    """The values of a condition's ``reason``. Those that Degraded can have are ordered from most to least serious."""

    INVALID_SPEC = "InvalidSpec"
    NO_IMAGE = "NoImage"
    OPERATOR_BLOCKED = "OperatorBlocked"
    QUEUE_UNUSABLE = "QueueUnusable"
    NAME_TAKEN = "NameTaken"
    APPLY_REFUSED = "ApplyRefused"

    VOLUME_LOST = "VolumeLost"
    VOLUME_TERMINATING = "VolumeTerminating"
    VOLUME_PENDING = "VolumePending"
    CHECKPOINT_FAILING = "CheckpointFailing"
    SYNCER_NODE_LOST = "SyncerNodeLost"
    SYNCER_UNREACHABLE = "SyncerUnreachable"
    KUBECONFIG_UNUSABLE = "KubeconfigUnusable"
    TOO_MANY_CLUSTERS = "TooManyClusters"
    DUPLICATE_CLUSTER = "DuplicateCluster"
    CLUSTER_MOVED = "ClusterMoved"
    CLUSTER_HELD_BY_OTHER = "ClusterHeldByOther"
    CLUSTER_UNSUITABLE = "ClusterUnsuitable"
    CLUSTER_UNTRUSTED = "ClusterUntrusted"
    CLUSTER_UNAUTHORIZED = "ClusterUnauthorized"
    CLUSTER_FORBIDDEN = "ClusterForbidden"
    CLUSTER_UNREACHABLE = "ClusterUnreachable"
    CONFIGURATION_ERROR = "ConfigurationError"
    REFUSED = "Refused"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    POD_NOT_STARTED = "PodNotStarted"
    PODS_FORBIDDEN = "PodsForbidden"
    UNSCHEDULABLE = "Unschedulable"
    NODE_SUSPECT = "NodeSuspect"
    CRASH_LOOPING = "CrashLooping"
    LOST_POD_KEPT = "LostPodKept"
    NODE_LOST = "NodeLost"
    OBJECT_REVERTED = "ObjectReverted"
    EVICTED = "Evicted"
    LEARNERS_GIVEN_UP = "LearnersGivenUp"
    LEARNERS_DIVERGING = "LearnersDiverging"
    QUORUM_LOWERED = "QuorumLowered"
    LEARNERS_NOT_ANSWERING = "LearnersNotAnswering"
    LEARNERS_TOO_FAST = "LearnersTooFast"
    LEARNERS_DISAGREEING = "LearnersDisagreeing"
    LEARNERS_STALLED = "LearnersStalled"
    LEARNERS_MISSING = "LearnersMissing"
    READMISSION_IGNORED = "ReadmissionIgnored"
    POD_DELETION_FORBIDDEN = "PodDeletionForbidden"
    ROLLOUT_WAITING = "RolloutWaiting"
    KUBECONFIG_DELETED = "KubeconfigDeleted"
    CREDENTIALS_EXPIRING = "CredentialsExpiring"
    BACKUP_FAILING = "BackupFailing"
    TAPE_FAILING = "TapeFailing"
    SCHEDULE_MISFIT = "ScheduleMisfit"

    NO_PROGRESS = "NoProgress"
    QUORUM_MISSING = "QuorumMissing"
    QUEUED = "Queued"
    WAITING_FOR_SYNCER = "WaitingForSyncer"
    WAITING_FOR_LEARNERS = "WaitingForLearners"
    TRAINING = "Training"
    FINISHING = "Finishing"

    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"

    BUDGET_REACHED = "BudgetReached"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    TRAINING_FAILED = "TrainingFailed"
    CHILDREN_LEFT = "ChildrenLeft"
    LOST_POD_DELETED = "LostPodDeleted"
    LEARNER_HELD = "LearnerHeld"
    LEARNER_QUEUED = "LearnerQueued"
    LEARNER_READMITTED = "LearnerReadmitted"
    POOL_SCALED = "PoolScaled"
    ROLLOUT_STARTED = "RolloutStarted"
    LEARNERS_LOST = "LearnersLost"
    LEARNERS_BACK = "LearnersBack"
    FALLBACK_CHANGED = "FallbackChanged"
    PLACED_IN_PART = "PlacedInPart"
    AS_EXPECTED = "AsExpected"
