"""What each reason means, and what to do about it.

Conditions, events and the tables in docs/operations.md all take their text from here.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from diloco_operator.decide.reasons import Reason


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
        _R.VOLUME_RETAINED: _warning(
            "The claim that the job needs holds the training of an earlier job of this name, which retained it "
            "(`spec.syncer.storage.whenDeleted: Retain`). The operator does not mix the two: it creates nothing new.",
            "To go on with that training, set `spec.syncer.storage.adopt: true`. To start from zero, use another name, "
            "or delete the claim and what is on it: `kubectl delete pvc JOB-syncer`.",
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
            "A PersistentVolumeClaim, the syncer's, a learner's or one that a pool mounts, is missing or not bound, so "
            "its pods cannot start.",
            "`kubectl describe pvc`. Usual causes: the StorageClass (`className` of `spec.syncer.storage` or of a "
            "pool's `storage`) does not exist, there is no default StorageClass, or the claim has another name. Create "
            "what is missing. The class cannot be changed: for another one, apply a new job.",
        ),
        _R.CHECKPOINT_FAILING: _warning(
            "The syncer cannot write checkpoints. Training continues, but a crash now loses everything since the last "
            "good checkpoint.",
            "Usually the volume is full: see 'The volume is full' below.",
        ),
        _R.SYNCER_NODE_LOST: _warning(
            "The node of the syncer's pod does not respond. Kubernetes keeps the pod, and the operator does not delete "
            "it: if that syncer still runs, a second one on its volume would damage the checkpoints.",
            "Make sure that the machine is off. Then do one of the three things in the message: see 'A node is lost' "
            "below.",
        ),
        _R.SYNCER_UNREACHABLE: _warning(
            "The syncer does not answer the operator. Progress and restarts in the status are the last known values. "
            "Learners keep training on their own up to `sync.maxStalenessSteps`, then pause. Once the syncer's pod has "
            "not been ready for ten minutes, the phase is Pending.",
            "`kubectl logs deploy/JOB-syncer`. If its pod is ready, check whether a NetworkPolicy blocks port 8080 "
            "from the operator's namespace.",
        ),
        _R.KUBECONFIG_UNUSABLE: _warning(
            "The Secret with the kubeconfig of a region's cluster is missing, lacks the key or the label "
            "`diloco.dev/cluster`, or holds something that the operator refuses: a program to run, a path to a file, "
            "no https. The message names the field. The region is left as it is: learners there train on.",
            "Fix the Secret; the operator reads it at once. `diloco cluster kubeconfig` makes one, and `diloco cluster "
            "check` says what is wrong with one.",
        ),
        _R.DUPLICATE_CLUSTER: _warning(
            "Two Secrets that the job names lead to the same namespace of the same cluster. The operator uses the "
            "first for its regions, and leaves the regions of the second as they are.",
            "Give the second its own namespace in that cluster (`diloco cluster prepare`), and change its Secret.",
        ),
        _R.CLUSTER_UNSUITABLE: _warning(
            "A region's cluster is older than Kubernetes 1.28, or does not have a kind of object that learners need. "
            "The region waits; the others train.",
            "Upgrade that cluster, or enable the API in the message.",
        ),
        _R.CLUSTER_UNTRUSTED: _warning(
            "The certificate of a region's API server is expired, for another name, or of another authority than that "
            "in the kubeconfig. Nothing is sent there: learners train on, and nothing is changed.",
            "If the cluster has a new authority, make the Secret anew (`diloco cluster kubeconfig`). If you did not "
            "expect this, find out who answers at that address before you do.",
        ),
        _R.CLUSTER_UNAUTHORIZED: _warning(
            "A region's API server rejects the token or client certificate in the kubeconfig (401): it has run out, or "
            "its ServiceAccount was deleted. Learners there train on, and nothing is changed.",
            "Make the Secret anew (`diloco cluster kubeconfig`); the operator uses it at once.",
        ),
        _R.CLUSTER_FORBIDDEN: _warning(
            "The operator may not do something in a region's cluster that it needs to (403). The message names the "
            "verb and the kind of object. Everything else there goes on.",
            "Ask the owner of that cluster to add the rule: `diloco cluster prepare` prints the whole Role, and "
            "`diloco cluster check` shows which rules are missing.",
        ),
        _R.CLUSTER_UNREACHABLE: _warning(
            "A region's API server cannot be reached, does not answer within 5 s, or answers with 5xx. Learners there "
            "train on for as long as they reach the syncer. Nothing is changed there until it answers; the status "
            "shows what was last seen. A job that is suspended, finished or deleted waits ten minutes for it at most.",
            "If it lasts, check that cluster and the network from the operator to its API server. Nothing has to be "
            "done for the job: the operator asks again at least once a minute.",
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
            "lower the pool's `batchSize`, or make it `Auto`; this needs a new job.",
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
            "If nodes are being added: nothing. Otherwise lower the pool's `learners` or `resources`, or fix nodes. If "
            "the message names a claim whose volume cannot be reached from other nodes, and its node does not come "
            "back: delete the claim and the pod, and the learner starts with an empty volume.",
        ),
        _R.CRASH_LOOPING: _warning(
            "A container has exited several times with an error that a restart may fix. The message quotes its last "
            "line.",
            "`kubectl logs POD --previous`.",
        ),
        _R.NODE_NOT_AVOIDED: _warning(
            "Different learners keep crashing on a node, and the operator has no right to delete their pods there, so "
            "it cannot move them. It tries again an hour later.",
            "Grant the right: at home with a chart of the operator's version, elsewhere see `diloco cluster check`. Or "
            "cordon the node and delete the pods yourself: see 'A node on which learners keep crashing' below.",
        ),
        _R.LOST_POD_KEPT: _warning(
            "A learner's node does not respond, and the operator leaves its pod where it is. The message says why: "
            "`failurePolicy.lostPods.action` is Wait, the pod mounts a claim that only one node may use (its own, by "
            "`pools[].storage`, or another), the syncer still hears from the learner or cannot be asked, or the "
            "operator may not delete pods there.",
            "See 'A node is lost' below. If the operator lacks a right, upgrade the chart; in a region's cluster, ask "
            "its owner for the rules that `diloco cluster prepare` prints.",
        ),
        _R.NODE_LOST: _warning(
            "A learner's node does not respond, so Kubernetes keeps its pod and starts no replacement. The operator "
            "deletes the pod by force; its process, if it still runs, is turned away by the syncer.",
            "Nothing: a new pod takes its place on another node. See 'A node is lost' below.",
        ),
        _R.EVICTED: _warning(
            "A pod was evicted from its node: disk or memory pressure, or preemption by a pod of higher priority.",
            "Nothing: it restarts elsewhere. If it happens often, raise the requests to what the pod uses, or set a "
            "`priorityClassName`.",
        ),
        _R.LEARNERS_GIVEN_UP: _warning(
            "A learner failed more often than `failurePolicy.maxRestartsPerLearner` allows and may not rejoin.",
            "Find out why it failed. Its pod stays Pending and takes no node; if it is started again and again, the "
            "operator may not delete pods there: upgrade the chart. To let it back in, annotate the job with "
            "`diloco.dev/readmit=REGION/POOL/INDEX`: see 'A learner is given up' below.",
        ),
        _R.LEARNERS_QUARANTINED: _warning(
            "A learner's outer gradients were not finite or far too large, several times in a row, and again after it "
            "was reset from the global model. It is not asked for a while, and the quorum does not count it. Then it "
            "starts over once more; each further quarantine is twice as long.",
            "Check that learner's log, data and machine (faulty memory, a faulty accelerator). If other pods on its "
            "node are affected too, cordon the node and delete the pod.",
        ),
        _R.LEARNERS_LEFT_OUT: _warning(
            "Merges keep leaving a learner out, because its outer gradients are not finite or are far larger than the "
            "others'. Its work is lost; the others' work is merged. This clears once each fragment has been merged "
            "with it.",
            "Nothing at first: if it goes on, the syncer resets the learner from the global model. Check the learner's "
            "log, data and machine (faulty memory, a faulty accelerator).",
        ),
        _R.QUORUM_FOLLOWS: _warning(
            "Learners were given up or are in quarantine, and fewer than `sync.quorum` are left. Those "
            "make the quorum, so merges continue with fewer members than the manifest asks for.",
            "Find out why. Scale a pool up: the quorum rises with the number of learners. To make "
            "the job end instead, set `failurePolicy.minimumLearners` (needs a new job).",
        ),
        _R.LEARNERS_STALLED: _warning(
            "Learners are connected but make no steps: their data is stuck or an accelerator hangs. Merges continue "
            "without them.",
            "Nothing at first: after `failurePolicy.stuckSeconds` the syncer has the learner's process end, and it is "
            "restarted. `kubectl logs POD --previous` then shows where each of its threads was.",
        ),
        _R.LEARNERS_MISSING: _warning(
            "Learner pods run but have not joined the syncer: they are still loading, or cannot connect.",
            "`kubectl logs POD`. Check whether a NetworkPolicy or a service mesh blocks port 29400 of JOB-syncer; for "
            "a region in another cluster, whether its pods reach the syncer's address.",
        ),
        _R.REVOCATION_IGNORED: _warning(
            "An entry of the annotation `diloco.dev/revoked` cannot be understood, or the manifest is refused, so the "
            "certificates that it means are still accepted. The message names them. Other entries are in force.",
            "Correct the manifest if it is refused. Otherwise remove the entry and run `diloco cluster revoke JOB "
            "REGION[/POOL]`. An entry is `REGION=TIME` or `REGION/POOL=TIME`, with a time that has passed.",
        ),
        _R.READMISSION_IGNORED: _warning(
            "The annotation `diloco.dev/readmit` names something that is no learner of the job. The learners that it "
            "names correctly are let back in.",
            "Correct it: ids of learners (`REGION/POOL/INDEX`), separated by commas.",
        ),
        _R.ROLLOUT_WAITING: _warning(
            "`resources` of a pool were changed, and one of its pods is not ready and keeps the others from being "
            "updated: a StatefulSet updates its pods one at a time, from the last to the first.",
            "Fix that pod (see the other causes). Or run `kubectl delete pod` on those that wait: each comes back with "
            "the new template.",
        ),
        _R.TOKEN_EXPIRING: _warning(
            "The token for a region's cluster runs out soon, and the operator may not renew it: the ServiceAccount has "
            "no permission to create tokens for itself.",
            "Make the Secret anew (`diloco cluster kubeconfig`) before that. Or ask the owner of that cluster for the "
            "rule that `diloco cluster prepare` prints; then the operator renews tokens itself.",
        ),
        _R.CLIENT_CERTIFICATE_EXPIRING: _warning(
            "The client certificate in the kubeconfig of a region's cluster runs out soon.",
            "Make the Secret anew before that, with a new certificate or with a token of a ServiceAccount (`diloco "
            "cluster kubeconfig`): the operator renews tokens itself.",
        ),
        _R.BACKUP_FAILING: _warning(
            "The syncer cannot upload backups (`spec.syncer.backup`). Training and checkpoints on the volume continue; "
            "if the volume is lost now, everything since the newest backup is lost.",
            "The message quotes the store: a wrong url, missing rights, a full bucket or folder, a store that does not "
            "answer. The syncer retries every five minutes at least. Credentials in a Secret are read when the "
            "syncer's pod starts: after a change, suspend and resume the job.",
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
        _R.CHILDREN_LEFT: _warning(
            "The job was deleted while another cluster did not answer, and ten minutes have passed: the job is gone, "
            "and objects of it are left there, perhaps with learners that run. The message names the cluster.",
            "If that cluster comes back, the operator deletes them while it has the kubeconfig. Otherwise, list and "
            "delete them with `diloco cluster orphans`.",
        ),
        _R.LOST_POD_REPLACED: _warning(
            "The operator has deleted a learner's pod by force, because its node did not respond. The pod's "
            "StatefulSet starts another one.",
            "Look at that node. If the pod's process still runs there, the syncer turns it away.",
        ),
        _R.LOST_POD_REMOVED: _warning(
            "The operator has deleted a learner's pod by force, because its node did not respond. The job is suspended "
            "or has ended, so no other pod takes its place.",
            "Look at that node.",
        ),
        _R.SYNCER_POD_RELEASED: _warning(
            "The operator has deleted the syncer's pod by force, because the annotation `diloco.dev/syncer-stopped` "
            "says that its machine is off. Another syncer starts as soon as the volume can be attached elsewhere.",
            "Nothing. If its pod cannot mount the volume for long (Kubernetes waits about six minutes before it "
            "detaches a disk from such a node), taint the node as described in 'A node is lost'.",
        ),
        _R.LEARNER_RELEASED: _normal(
            "The pod of a learner that is given up, or that `without` names, was deleted, so that no node is kept for "
            "it. Another pod of its name stays Pending with the scheduling gate `diloco.dev/held`.",
        ),
        _R.NODE_AVOIDED: _warning(
            "Different learners keep crashing on one node, while others of their pools work on other nodes. For an "
            "hour new pods of these pools prefer other nodes; `status.avoidedNodes` names the node and the learners.",
            "Look at the node: see 'A node on which learners keep crashing' below.",
        ),
        _R.LEARNER_MOVED: _normal(
            "A learner's pod that kept crashing on an avoided node was deleted, so that its next pod comes to another "
            "node.",
        ),
        _R.LEARNER_READMITTED: _normal(
            "The syncer lets a learner that was given up join again, because the annotation `diloco.dev/readmit` "
            "names it. Its restarts are counted from zero, and its pod may have a node.",
        ),
        _R.FALLBACK_USED: _normal(
            "Pods of a pool found no node for `fallbackAfterSeconds`. The region's next pool has as many more "
            "learners.",
        ),
        _R.FALLBACK_LEFT: _normal(
            "Pods of a pool that had found no node work now. As many learners of the region's next pool end.",
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
