"""What the causes of Degraded mean."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from diloco_operator.decide.guide.entry import Guide, warning
from diloco_operator.decide.reasons import Reason

CAUSES: Final[Mapping[Reason, Guide]] = MappingProxyType(
    {
        Reason.INVALID_SPEC: warning(
            "The manifest has an error that the API server did not catch; the message names each field. The operator "
            "creates and changes nothing. What runs keeps running: pods on lost nodes are replaced, and the job ends "
            "when its training ends. A pool whose pods were being replaced stays half replaced.",
            "Fix the field. Pod settings can be changed once the job is suspended; `suspend`, the deadline and the "
            "time to live still work. Do not delete the job for this: that deletes its model.",
        ),
        Reason.NO_IMAGE: warning(
            "The syncer or a pool has no trainer image. The operator creates nothing.",
            "Set `spec.image`, or install the operator with a default image (`--set trainer.image.repository=...`).",
        ),
        Reason.OPERATOR_BLOCKED: warning(
            "The operator does nothing in the job's namespace; what already runs keeps running. It may not create the "
            "Lease `diloco-jobs` there, or the namespace has so many or so large objects that are labelled as a job's "
            "that it cannot keep them all.",
            "Allow what the message names: a quota or an admission policy prevents the Lease. Or delete needless "
            "objects with the label `app.kubernetes.io/managed-by: diloco-operator`; the operator counts them again "
            "within five minutes.",
        ),
        Reason.QUEUE_UNUSABLE: warning(
            "The job has `spec.queue`, and the operator was installed without `kueue.enabled`, the cluster has no "
            "Kueue, or a ResourceFlavor or WorkloadPriorityClass cannot be read. What runs keeps running. Or Kueue "
            "queues the job's sets too, because they have its label.",
            "Do what the message says, or delete the job and create it without `spec.queue`. See [queues](queues.md).",
        ),
        Reason.NAME_TAKEN: warning(
            "An object with another owner has a name that the job needs: an earlier job of this name is still being "
            "deleted, or has left a claim with its training (`spec.syncer.storage.whenDeleted: Retain`). The operator "
            "leaves the object alone and creates nothing new.",
            "If you have just deleted a job of this name, wait. To go on with the training on a claim, set "
            "`spec.syncer.storage.adoptRetained: true`. Otherwise delete the object (of a claim, with what is on it: "
            "`kubectl delete pvc JOB-syncer`), or apply the job under another name.",
        ),
        Reason.APPLY_REFUSED: warning(
            "The API server rejected one of the job's objects: an invalid quantity, a quota, an admission policy, a "
            "permission that the operator lacks.",
            "Fix what the message says; a claim that does not exist yet takes another `syncer.storage.size`. The "
            "operator retries every 30 s, and at once when the job changes.",
        ),
        Reason.VOLUME_LOST: warning(
            "The claim that held the training, or the volume behind it, is gone, or another claim has its name. The "
            "operator starts no syncer, because it would silently train from zero.",
            "See 'The volume is lost' below.",
        ),
        Reason.VOLUME_TERMINATING: warning(
            "Someone has deleted the syncer's claim. It stays until the syncer's pod ends.",
            "Do not stop that pod. Keep the volume and copy it: see 'The volume is lost' below.",
        ),
        Reason.VOLUME_PENDING: warning(
            "A claim that the syncer or a learner mounts is missing or not bound, so the pod cannot start.",
            "`kubectl describe pvc`. Usual causes: its StorageClass (`storage.className`) does not exist, there is no "
            "default StorageClass, or the claim has another name. Create what is missing. Another class needs a new "
            "job.",
        ),
        Reason.CHECKPOINT_FAILING: warning(
            "The syncer cannot write checkpoints. Training continues, but a crash now loses everything since the last "
            "good one.",
            "Usually the volume is full: see 'The volume is full' below.",
        ),
        Reason.SYNCER_NODE_LOST: warning(
            "The node of the syncer's pod does not respond. The operator does not delete the pod: if that syncer "
            "still runs, a second one on its volume would damage the checkpoints.",
            "Make sure that the machine is off. Then do one of the three things in the message: see 'A node is lost' "
            "below.",
        ),
        Reason.SYNCER_UNREACHABLE: warning(
            "The syncer does not answer the operator. Progress and restarts in the status are the last known values. "
            "Learners train on up to `sync.maxStalenessSteps`, then pause. Once the syncer's pod has not been ready "
            "for ten minutes, the phase is Pending.",
            "`kubectl logs deploy/JOB-syncer`. If its pod is ready, check whether a NetworkPolicy blocks port 8080 "
            "from the operator's namespace.",
        ),
        Reason.KUBECONFIG_UNUSABLE: warning(
            "The Secret with a region's kubeconfig is missing, lacks the key or the label `diloco.dev/cluster`, or "
            "holds what the operator refuses: a program to run, a path to a file, no https. Learners there train on.",
            "Fix what the message names; the operator reads the Secret at once. `diloco cluster kubeconfig` makes "
            "one, `diloco cluster check` checks one.",
        ),
        Reason.TOO_MANY_CLUSTERS: warning(
            "The operator uses at most 100 other clusters at once, and none is left for this namespace: it may have "
            "twice as many as are left free. Those in use stay in use. Learners in this region train on.",
            "Name fewer clusters in this namespace, or run an operator of its own for it (`namespaces`).",
        ),
        Reason.DUPLICATE_CLUSTER: warning(
            "Two Secrets that the job names lead to the same namespace of the same cluster. The operator uses the "
            "first, and leaves the regions of the second as they are.",
            "Give the second its own namespace in that cluster (`diloco cluster prepare`), and change its Secret.",
        ),
        Reason.CLUSTER_MOVED: warning(
            "The Secret of a region's cluster leads to another API server or namespace than the one that has the "
            "job's objects and learners. The operator writes to neither.",
            "Put the earlier kubeconfig back. [Move the region](tasks.md#add-or-remove-a-pool-or-a-region) by "
            "removing it first. If the earlier place is gone, annotate the job: `diloco.dev/give-up-place=PLACE`, "
            "with the place in the message.",
        ),
        Reason.CLUSTER_HELD_BY_OTHER: warning(
            "Another operator with this cluster's identity holds the other cluster, or held it at a later time: one of "
            "the two was restored from a backup of the other. This one changes and deletes nothing there.",
            "Stop the operator of the copy. If the original is gone for good, delete the Lease that the message names: "
            "then this one takes its place.",
        ),
        Reason.CLUSTER_UNSUITABLE: warning(
            "A region's cluster is older than Kubernetes 1.28, or lacks a kind of object that learners need. The "
            "region waits; the others train.",
            "Upgrade that cluster, or enable the API in the message.",
        ),
        Reason.CLUSTER_UNTRUSTED: warning(
            "The certificate of a region's API server is expired, for another name, or of another authority than that "
            "in the kubeconfig. Nothing is sent there; learners there train on.",
            "If the cluster has a new authority, make the Secret again (`diloco cluster kubeconfig`). If you did not "
            "expect this, check the server's identity first.",
        ),
        Reason.CLUSTER_UNAUTHORIZED: warning(
            "A region's API server rejects the token or client certificate in the kubeconfig (401): it has run out, "
            "or its ServiceAccount was deleted. Learners there train on.",
            "Make the Secret again (`diloco cluster kubeconfig`); the operator uses it at once.",
        ),
        Reason.CLUSTER_FORBIDDEN: warning(
            "The operator lacks a right in a region's cluster (403); the message names the verb and the kind of "
            "object. Everything else there goes on.",
            "Ask the owner of that cluster for the rule: `diloco cluster prepare` prints the whole Role, `diloco "
            "cluster check` shows what is missing.",
        ),
        Reason.CLUSTER_UNREACHABLE: warning(
            "A region's API server cannot be reached, does not answer within 5 s, or answers with 5xx. Learners there "
            "train on for as long as they reach the syncer; nothing is changed there. A job that is suspended, "
            "finished or deleted waits ten minutes for it at most.",
            "If it lasts, check that cluster and the network from the operator to its API server. The operator asks "
            "again at least once a minute.",
        ),
        Reason.CONFIGURATION_ERROR: warning(
            "A container exited with code 2: its manifest, data, a file or an address is wrong. The message quotes "
            "its last line. Kubernetes restarts it, with growing pauses.",
            "Fix what the message names: mount the data, correct a ConfigMap. A pool's image, `env` and `podTemplate` "
            "can be changed while the job is suspended. `No such option`: the image is older than the operator; name "
            "one of the operator's version.",
        ),
        Reason.REFUSED: warning(
            "The syncer refused a learner (exit code 3): its certificate is for another job, another pod has its id, "
            "or the job has no such learner.",
            "Look for a second pod or process with this learner's id. After scaling up, this clears within seconds.",
        ),
        Reason.OUT_OF_MEMORY: warning(
            "A container was killed for using more memory than its limit.",
            "Raise `resources.limits.memory` of the pool or of `syncer` while the job runs. Or apply a new job with a "
            "lower `batchSize`, or `Auto`.",
        ),
        Reason.IMAGE_PULL_FAILED: warning(
            "An image cannot be pulled: its name or tag is wrong, access is denied, or the registry is down.",
            "Check the image's name and `imagePullSecrets`; create a missing pull secret. The kubelet retries.",
        ),
        Reason.POD_NOT_STARTED: warning(
            "No container of a pod can be started on its node: a Secret, ConfigMap or claim is missing, a disk is "
            "still attached to another node, the image runs as root, or the network plugin, the RuntimeClass or the "
            "node itself fails.",
            "Create what the message names; the kubelet retries. If it says 'Multi-Attach', the old node still holds "
            "the disk: see 'A node is lost' below. If only one node fails, cordon it.",
        ),
        Reason.PODS_FORBIDDEN: warning(
            "Pods of a pool or of the syncer may not be created: a quota, Pod Security, a missing PriorityClass or an "
            "admission webhook prevents it.",
            "Fix what the message says. The pods' controller retries, with pauses of up to several minutes.",
        ),
        Reason.UNSCHEDULABLE: warning(
            "No node can take the pod: not enough of a resource, a selector that matches no node, or a taint. The job "
            "trains with its other learners.",
            "If nodes are being added: nothing. Otherwise lower the pool's `learners` or `resources`, or fix nodes. "
            "If the message names a claim whose node does not come back, delete the claim and the pod: the learner "
            "starts with an empty volume.",
        ),
        Reason.NODE_SUSPECT: warning(
            "Different learners keep crashing on one node, while others of their pools work on other nodes. Its "
            "accelerator, driver or disk may be the cause.",
            "`kubectl cordon NODE`, then delete the pods that crash there: see 'A node on which learners keep "
            "crashing' below.",
        ),
        Reason.CRASH_LOOPING: warning(
            "A container has exited several times with an error that a restart may fix. The message quotes its last "
            "line.",
            "`kubectl logs POD --previous`.",
        ),
        Reason.LOST_POD_KEPT: warning(
            "A learner's node does not respond, and the operator leaves its pod where it is. The message says why.",
            "See 'A node is lost' below.",
        ),
        Reason.NODE_LOST: warning(
            "A learner's node does not respond, so Kubernetes keeps its pod and starts no replacement. The operator "
            "deletes the pod by force; the syncer turns its process away if it still runs.",
            "Nothing: a new pod takes its place on another node. See 'A node is lost' below.",
        ),
        Reason.OBJECT_REVERTED: warning(
            "Something keeps changing one of the job's objects, a pool's replicas for example. The message says which "
            "field and, if the API server knows it, who. The operator repairs the object only once a minute; "
            "too many replicas it takes back at once.",
            "Remove the webhook's rule, the autoscaler or the second operator (a Lease keeps operators apart only "
            "within one namespace).",
        ),
        Reason.EVICTED: warning(
            "A pod was evicted from its node: disk or memory pressure, preemption by a pod of higher priority, or, of "
            "the syncer, a drain.",
            "Nothing: it restarts elsewhere. If it happens often, raise the requests to what the pod uses, or set a "
            "`priorityClassName`.",
        ),
        Reason.LEARNERS_GIVEN_UP: warning(
            "A learner failed more often than `failurePolicy.maxRestartsPerLearner` allows and may not rejoin.",
            "Read its last log lines, then see 'A learner is given up' below.",
        ),
        Reason.LEARNERS_DIVERGING: warning(
            "A learner's outer gradients are not finite, or far larger than the others', so merges leave it out. If "
            "it goes on, the syncer resets it from the global model, and then puts it in quarantine for a while, "
            "twice as long each time.",
            "Nothing at first. If it lasts, check that learner's log, data and machine (memory, accelerator). If "
            "other pods on its node are affected too, cordon the node and delete the pod.",
        ),
        Reason.QUORUM_LOWERED: warning(
            "Learners were given up, are in quarantine or leave requests unanswered, and fewer than `sync.quorum` are "
            "left. Those make the quorum.",
            "Mend what made them fail, or scale a pool up: the quorum rises with the number of learners. To make the "
            "job end instead, set `failurePolicy.minimumLearners` (needs a new job).",
        ),
        Reason.LEARNERS_NOT_ANSWERING: warning(
            "A learner is connected, but its outer gradients do not arrive in time, or it declines to send them. So "
            "it sets no pace, and the quorum does not count it if rounds have waited for it. It counts again with the "
            "next one that arrives.",
            "Check its link ([links.md](links.md)) and `kubectl logs POD`. If the link is well, look for changed code "
            "in its image or its `podTemplate`.",
        ),
        Reason.LEARNERS_TOO_FAST: warning(
            "More than a quarter of the steps that a learner reports do not count: it is faster than the others of its "
            "pool show to be possible or, alone in its pool, than other pools do. Its weight and the budget count what "
            "is possible.",
            "Give learners on faster machines a pool of their own, and say how fast its learners are "
            "(`regions[].pools[].speed`). If the machines are alike, look for changed code in its image or its "
            "`podTemplate`.",
        ),
        Reason.LEARNERS_DISAGREEING: warning(
            "A learner's outer gradients have pointed against the others' (cosine below 0) for 24 merges or two turns "
            "of every fragment, whichever is more. They are still merged, clipped in size. Of two learners both are "
            "named.",
            "Compare its data, image and code with the others', and check its accelerator. If its data differs on "
            "purpose, nothing is wrong. If you do not trust it, list its index in the pool's `excludedIndices`.",
        ),
        Reason.LEARNERS_STALLED: warning(
            "Learners are connected but make no steps: their data is stuck, an accelerator hangs, or they have been "
            "loading the model for longer than `sync.startupSeconds`. Merges continue without them.",
            "Of one that loads: its link (see [links.md](links.md)) and `kubectl logs POD`. Otherwise nothing at "
            "first: after `failurePolicy.stuckSeconds` its process is restarted. `kubectl logs POD --previous` then "
            "shows where each of its threads was.",
        ),
        Reason.LEARNERS_MISSING: warning(
            "Learner pods run but are not joined to the syncer: they are loading, cannot connect, or are no longer "
            "heard because their link is cut, their node is gone or their process hangs.",
            "`kubectl logs POD`. Check whether a NetworkPolicy or a service mesh blocks port 29400 of JOB-syncer, or "
            "DNS ([what learners need](maintenance.md#namespaces-with-rules)); for a region in another cluster, see "
            "[why a learner cannot connect](multi-cluster.md#why-a-learner-cannot-connect).",
        ),
        Reason.READMISSION_IGNORED: warning(
            "The annotation `diloco.dev/readmit` names something that is no learner of the job, or, in an event, a "
            "learner that is not given up; or the manifest is refused meanwhile. Others that it names are let back "
            "in.",
            "Correct it: ids of learners (`REGION/POOL/INDEX`), separated by commas. The message, or that of "
            "`LearnersGivenUp`, says who is given up.",
        ),
        Reason.POD_DELETION_FORBIDDEN: warning(
            "The operator may not delete pods. So a learner that is given up, in `excludedIndices` or placed in part "
            "keeps its node, or one that should run again is still held back.",
            "Upgrade the chart, or ask the cluster's owner for the right (`diloco cluster check`); an admission policy "
            "can prevent it too. The operator tries again every 30 s. For those that are held back, `kubectl delete "
            "pod` is enough.",
        ),
        Reason.ROLLOUT_WAITING: warning(
            "`resources` of a pool were changed, and some of its pods keep the old ones. The operator replaces one "
            "learner at a time, the last first, and only while the others are ready and it may delete pods. It waits "
            "for no learner without a node that an elastic pool can do without.",
            "Fix the learner that it waits for, or grant the operator the right. Or run `kubectl delete pod` on those "
            "that wait: each comes back with the new template.",
        ),
        Reason.KUBECONFIG_DELETED: warning(
            "Someone has deleted the Secret with a region's kubeconfig. The finalizer `diloco.dev/in-use` keeps it, "
            "and the operator uses it, until no job names it.",
            "To keep the region, remove the Secret's finalizers and make it again (`diloco cluster kubeconfig`). To "
            "take the cluster away, remove the region, or the Secret's label `diloco.dev/cluster`.",
        ),
        Reason.CREDENTIALS_EXPIRING: warning(
            "The token or client certificate in a region's kubeconfig runs out soon, and the operator cannot renew "
            "it: it renews no certificate, and a token only if its ServiceAccount may create tokens for itself.",
            "Make the Secret again before that (`diloco cluster kubeconfig`), or ask the owner of that cluster for "
            "the rule that `diloco cluster prepare` prints.",
        ),
        Reason.BACKUP_FAILING: warning(
            "The syncer cannot upload backups (`spec.syncer.backup`). Training continues; if the volume is lost now, "
            "everything since the newest backup is lost.",
            "The message quotes the store: a wrong url, missing rights, a full bucket or folder, no answer, another "
            "job or syncer that uploads to the same folder. The syncer retries at least every five minutes. After a "
            "change of its Secret, suspend and resume the job.",
        ),
        Reason.TAPE_FAILING: warning(
            "The syncer's tape (its record of decisions, for `diloco replay`) is incomplete. Training is not affected.",
            "Check the volume: see 'The volume is full' below.",
        ),
        Reason.SCHEDULE_MISFIT: warning(
            "Settings of `sync` and the measured links or machines do not fit together: a link is too thin, merges or "
            "rounds take too long, or learners pause. Part of the work is late or lost.",
            "The message lists remedies, each enough alone: a setting of `sync` (needs a new job), a faster link, "
            "more cores for the syncer (`syncer.resources`), longer steps. See [links.md](links.md).",
        ),
    }
)
