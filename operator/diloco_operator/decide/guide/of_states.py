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
            "Fewer learners train than the quorum requires (`sync.quorum`, or as many as are left), so nothing is "
            "merged.",
            "Degraded says why the others do not train. Or scale a pool up.",
        ),
        Reason.WAITING_FOR_SYNCER: normal(
            "The syncer's pod is not ready yet: it waits for a node, pulls its image, starts, or loads a checkpoint.",
            "If this lasts, Degraded says why.",
        ),
        Reason.WAITING_FOR_LEARNERS: normal(
            "The syncer runs but no learner trains yet: they wait for nodes, pull their image, start, or load the "
            "model.",
            "If this lasts, Degraded says why.",
        ),
        Reason.TRAINING: normal(
            "Learners train and merges advance.",
        ),
        Reason.EVALUATING: normal(
            "The token budget is merged; the last rounds finish and the final model is evaluated.",
        ),
        Reason.EXPORTING: normal(
            "Training is over and the syncer writes the model to its volume.",
            "If this lasts, the volume may be full: read the syncer's log.",
        ),
        Reason.SUSPENDING: normal(
            "Learners hand in their work and stop; then the syncer writes a checkpoint and stops.",
            "If this lasts more than five minutes, see 'A node is lost' below.",
        ),
        Reason.SUSPENDED: normal(
            "No pod is left. The checkpoint is on the syncer's volume.",
            "Resume with `suspend: false`.",
        ),
        Reason.RESUMED: normal(
            "The job was suspended and continues from its checkpoint.",
        ),
        Reason.NOT_SUSPENDED: normal(
            "The job has not been suspended.",
        ),
        Reason.BUDGET_REACHED: normal(
            "`training.tokens` tokens are merged and the model is exported; `status.model` says where.",
            "Copy the model before `ttlSecondsAfterFinished` deletes the job and its volume.",
        ),
        Reason.DEADLINE_EXCEEDED: warning(
            "`activeDeadlineSeconds` have passed since the job was started or last resumed.",
            "The last checkpoint is on the syncer's volume. A failed job is not started again: apply a new one with a "
            "longer deadline.",
        ),
        Reason.TRAINING_FAILED: warning(
            "The syncer ended the training. The message gives its reason: usually fewer than "
            "`failurePolicy.minimumLearners` learners are left.",
            "Find out why learners were given up (restarts, logs), then apply a new job.",
        ),
        Reason.CHILDREN_LEFT: warning(
            "The job was deleted while another cluster did not answer, and ten minutes have passed: the job is gone, "
            "and objects of it are left there, perhaps with learners that run. The message names the cluster.",
            "If that cluster comes back, the operator deletes them while it has the kubeconfig. Otherwise, list and "
            "delete them with `diloco cluster orphans`.",
        ),
        Reason.LOST_POD_REPLACED: warning(
            "The operator has deleted a learner's pod by force, because its node did not respond. The pod's "
            "StatefulSet starts another one.",
            "Look at that node. If the pod's process still runs there, the syncer turns it away.",
        ),
        Reason.LOST_POD_REMOVED: warning(
            "The operator has deleted a learner's pod by force, because its node did not respond. The job is suspended "
            "or has ended, so no other pod takes its place.",
            "Look at that node.",
        ),
        Reason.SYNCER_POD_RELEASED: warning(
            "The operator has deleted the syncer's pod by force, because the annotation `diloco.dev/syncer-stopped` "
            "says that its machine is off. Another syncer starts as soon as the volume can be attached elsewhere.",
            "Nothing. If its pod cannot mount the volume for long (Kubernetes waits about six minutes before it "
            "detaches a disk from such a node), taint the node as described in 'A node is lost'.",
        ),
        Reason.LEARNER_RELEASED: normal(
            "The pod of a learner that is given up, or that `excludedIndices` names, was deleted, so that no node is "
            "kept for it. Another pod of its name stays Pending with the scheduling gate `diloco.dev/held`.",
        ),
        Reason.NODE_AVOIDED: warning(
            "Different learners keep crashing on one node, while others of their pools work on other nodes. For an "
            "hour new pods of these pools prefer other nodes; `status.avoidedNodes` names the node and the learners.",
            "Look at the node: see 'A node on which learners keep crashing' below.",
        ),
        Reason.LEARNER_MOVED: normal(
            "A learner's pod that kept crashing on an avoided node was deleted, so that its next pod comes to another "
            "node.",
        ),
        Reason.LEARNER_READMITTED: normal(
            "The syncer lets a learner that was given up join again, because the annotation `diloco.dev/readmit` "
            "names it. Its restarts are counted from zero, and its pod may have a node.",
        ),
        Reason.GIVING_UP_LOST: normal(
            "A learner that was given up may join again, although nobody has let it back in: the syncer was started "
            "again from a checkpoint that is older than the giving up.",
            "If it goes on failing, it is given up again.",
        ),
        Reason.FALLBACK_USED: normal(
            "Pods of a pool found no node for `fallbackAfterSeconds`. The region's next pool has as many more "
            "learners.",
        ),
        Reason.FALLBACK_LEFT: normal(
            "Pods of a pool that had found no node work now, or some of its learners are given up or left out. As many "
            "learners of the region's next pool end.",
        ),
        Reason.IN_PROGRESS: normal(
            "The job has not ended.",
        ),
        Reason.AS_EXPECTED: normal(
            "Nothing to report.",
        ),
    }
)
