"""What the other reasons of conditions mean, and those of events alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from diloco_operator.decide.guide.entry import Guide, normal, warning
from diloco_operator.decide.reasons import Reason

STATES: Final[Mapping[Reason, Guide]] = MappingProxyType(
    {
        Reason.NO_PROGRESS: warning(
            "Learners train, but nothing has been merged for ten minutes or more.",
            "`kubectl diloco status JOB` shows whether fragments are in flight. Very long steps or a very slow link "
            "explain it; otherwise read the syncer's log.",
        ),
        Reason.QUORUM_MISSING: warning(
            "Fewer learners train than `sync.quorum` requires, so nothing is merged.",
            "Degraded says why the others do not train. Or scale a pool up.",
        ),
        Reason.QUEUED: normal(
            "Kueue has not admitted the Workload with the syncer and its first learners, or has evicted it. The "
            "message is Kueue's.",
            "If this lasts: `kubectl describe workload JOB-syncer`. See [queues](queues.md).",
        ),
        Reason.WAITING_FOR_SYNCER: normal(
            "The syncer's pod waits for a node, pulls its image, starts, or loads a checkpoint.",
        ),
        Reason.WAITING_FOR_LEARNERS: normal(
            "The syncer runs, and no learner trains yet.",
        ),
        Reason.TRAINING: normal(
            "Learners train and merges advance.",
        ),
        Reason.FINISHING: normal(
            "The token budget is merged. The final model is evaluated and written to the syncer's volume.",
            "If this lasts, the volume may be full: read the syncer's log.",
        ),
        Reason.SUSPENDING: normal(
            "Learners hand in their work and stop; then the syncer writes a checkpoint and stops.",
            "If this lasts more than five minutes, see 'A node is lost' below.",
        ),
        Reason.SUSPENDED: normal(
            "No pod is left.",
            "Resume with `suspend: false`: the job goes on from its last checkpoint.",
        ),
        Reason.RESUMED: normal(
            "The job continues from its last checkpoint: it was suspended, or complete and `training.tokens` was "
            "raised. Its deadline starts over.",
        ),
        Reason.BUDGET_REACHED: normal(
            "`training.tokens` tokens are merged and the model is exported; `status.model` says where.",
            "Copy the model before `ttlSecondsAfterFinished` deletes the job and its volume.",
        ),
        Reason.DEADLINE_EXCEEDED: warning(
            "`activeDeadlineSeconds` have passed since the job was started or last resumed.",
            "A failed job is not started again: apply a new one with a longer deadline. The last checkpoint is on the "
            "syncer's volume.",
        ),
        Reason.TRAINING_FAILED: warning(
            "The syncer ended the training. The message gives its reason: usually fewer than "
            "`failurePolicy.minimumLearners` learners are left.",
            "Read the logs of the learners that were given up, mend the cause, then apply a new job.",
        ),
        Reason.CHILDREN_LEFT: warning(
            "The job was deleted or `diloco.dev/give-up-place` was set, and objects are left in another cluster, "
            "perhaps with learners that run.",
            "If that cluster comes back, the operator deletes them while another job names it. Otherwise use `diloco "
            "cluster orphans`.",
        ),
        Reason.LOST_POD_DELETED: warning(
            "The operator has deleted a pod by force, because its node did not respond.",
            "Look at that node. If the syncer's next pod cannot mount the volume for more than six minutes, taint the "
            "node: see 'A node is lost' below.",
        ),
        Reason.LEARNER_HELD: normal(
            "The pod of a learner that is given up, in `excludedIndices` or placed in part was deleted to free its "
            "node. The next pod of its name stays Pending with the scheduling gate `diloco.dev/held`.",
        ),
        Reason.LEARNER_QUEUED: normal(
            "Kueue has taken back the quota of a learner, so its pod ends after a last push. The next pod of its name "
            "stays Pending with the scheduling gate `diloco.dev/held` until Kueue admits it again.",
        ),
        Reason.LEARNER_READMITTED: normal(
            "A learner that was given up may join again: the annotation `diloco.dev/readmit` names it, or the syncer "
            "was started from an older checkpoint.",
        ),
        Reason.POOL_SCALED: normal(
            "The manifest asks for more or fewer learners of a pool than before.",
        ),
        Reason.ROLLOUT_STARTED: normal(
            "The manifest has changed the template of pods that run: learners are replaced one at a time, the syncer "
            "after its last checkpoint.",
        ),
        Reason.LEARNERS_LOST: warning(
            "Learners lost their session with the syncer: their connection broke, or they were silent for their "
            "lease. Told at most once a minute for all; the syncer's log has each one.",
            "Nothing if they come back (`LearnersBack`). Otherwise Degraded says what is wrong.",
        ),
        Reason.LEARNERS_BACK: normal(
            "Learners have joined the syncer again. Told at most once a minute.",
        ),
        Reason.FALLBACK_CHANGED: normal(
            "Learners of a pool found no node for `fallbackAfterSeconds`, so the region's next pool has as many more; "
            "or they no longer need it, and it has fewer.",
        ),
        Reason.PLACED_IN_PART: warning(
            "Only some pods of a learner of several nodes found a node. All of them are held back, so that none keeps "
            "a node, and tried again after one to ten minutes.",
            "Nothing if nodes are being added. Otherwise lower the pool's `learners`.",
        ),
        Reason.AS_EXPECTED: normal(
            "Nothing to report.",
        ),
    }
)
