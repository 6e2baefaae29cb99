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
            "only replaces pods on lost nodes, and ends the job when its training ends.",
            "Fix the field. Pod settings can be changed once the job is suspended. Do not delete the job: that "
            "deletes its model.",
        ),
        Reason.NO_IMAGE: warning(
            "The syncer or a pool has no trainer image. The operator creates nothing.",
            "Set `spec.image`, or install the operator with a default image (`--set trainer.image.repository=...`).",
        ),
        Reason.OPERATOR_BLOCKED: warning(
            "The operator does nothing in the job's namespace; what runs keeps running. It may not create the Lease "
            "`diloco-jobs` there, or there are too many or too large objects with a job's label.",
            "Allow what a quota or an admission policy prevents, or delete needless objects with the label "
            "`app.kubernetes.io/managed-by: diloco-operator`.",
        ),
        Reason.QUEUE_UNUSABLE: warning(
            "`spec.queue` is set, but `kueue.enabled`, Kueue, a ResourceFlavor or a WorkloadPriorityClass is missing; "
            "or Kueue queues the job's sets too. What runs keeps running.",
            "Follow the message, or create the job again without `spec.queue`. See [queues](queues.md).",
        ),
        Reason.NAME_TAKEN: warning(
            "Something else has a name that the job needs: an earlier job of this name is being deleted, or has left "
            "a claim with its training. The operator creates nothing new.",
            "Wait for the deletion. To go on with the training on a claim, set `spec.syncer.storage.adoptRetained: "
            "true`. Otherwise delete the object (a claim with what is on it), or use another name.",
        ),
        Reason.APPLY_REFUSED: warning(
            "The API server rejected one of the job's objects: an invalid quantity, a quota, an admission policy, a "
            "permission that the operator lacks.",
            "Fix what the message says. The operator retries every 30 s, and at once when the job changes.",
        ),
        Reason.VOLUME_LOST: warning(
            "The claim that held the training, or its volume, is gone or another one. The operator starts no syncer, "
            "because it would train from zero.",
            "See 'The volume is lost' below.",
        ),
        Reason.VOLUME_TERMINATING: warning(
            "Someone has deleted the syncer's claim. It stays until the syncer's pod ends.",
            "Do not stop that pod. Keep the volume and copy it: see 'The volume is lost' below.",
        ),
        Reason.VOLUME_PENDING: warning(
            "A claim that the syncer or a learner mounts is missing or not bound.",
            "`kubectl describe pvc`. Usually its StorageClass or a default one does not exist: create it. Another "
            "class needs a new job.",
        ),
        Reason.CHECKPOINT_FAILING: warning(
            "The syncer cannot write checkpoints. Training continues, but a crash now loses everything since the last "
            "good one.",
            "Usually the volume is full: see 'The volume is full' below.",
        ),
        Reason.SYNCER_NODE_LOST: warning(
            "The node of the syncer's pod does not respond. The operator does not delete the pod: a second syncer on "
            "its volume would damage the checkpoints.",
            "Make sure that the machine is off. Then do one of the three things in the message: see 'A node is lost' "
            "below.",
        ),
        Reason.SYNCER_UNREACHABLE: warning(
            "The syncer does not answer the operator. Progress and restarts in the status are the last known values. "
            "Learners train on up to `sync.maxStalenessSteps`, then pause.",
            "`kubectl logs deploy/JOB-syncer`. If its pod is ready, check whether a NetworkPolicy blocks port 8080 "
            "from the operator.",
        ),
        Reason.KUBECONFIG_UNUSABLE: warning(
            "The Secret with a region's kubeconfig is missing, lacks the key or the label `diloco.dev/cluster`, or "
            "runs a program, names a file or uses no https. Learners there train on.",
            "Fix what the message names. `diloco cluster kubeconfig` makes such a Secret, `diloco cluster check` "
            "checks one.",
        ),
        Reason.TOO_MANY_CLUSTERS: warning(
            "The operator uses at most 100 other clusters at once, and none is left for this namespace. Learners in "
            "this region train on.",
            "Name fewer clusters in this namespace, or run an operator of its own for it (`namespaces`).",
        ),
        Reason.DUPLICATE_CLUSTER: warning(
            "Two Secrets that the job names lead to the same namespace of the same cluster. The operator uses the "
            "first one only.",
            "Give the second its own namespace in that cluster (`diloco cluster prepare`), and change its Secret.",
        ),
        Reason.CLUSTER_MOVED: warning(
            "A region's Secret leads to another API server or namespace than the one that has the job's objects. The "
            "operator writes to neither.",
            "Put the earlier kubeconfig back, or [move the region](tasks.md#add-or-remove-a-pool-or-a-region). If the "
            "earlier place is gone, annotate the job: `diloco.dev/give-up-place=PLACE`, with the place in the "
            "message.",
        ),
        Reason.CLUSTER_HELD_BY_OTHER: warning(
            "Another operator with this cluster's identity holds the other cluster: one of the two was restored from "
            "a backup. This one changes nothing there.",
            "Stop the operator of the copy. If the original is gone for good, delete the Lease that the message "
            "names: then this one takes its place.",
        ),
        Reason.CLUSTER_UNSUITABLE: warning(
            "A region's cluster is older than Kubernetes 1.28, or lacks a kind of object that learners need. The "
            "region waits.",
            "Upgrade that cluster, or enable the API in the message.",
        ),
        Reason.CLUSTER_UNTRUSTED: warning(
            "The certificate of a region's API server is expired, for another name, or of another authority. Nothing "
            "is sent there; learners there train on.",
            "If the cluster has a new authority, make the Secret again (`diloco cluster kubeconfig`). Otherwise check "
            "the server's identity first.",
        ),
        Reason.CLUSTER_UNAUTHORIZED: warning(
            "A region's API server rejects the token or client certificate in the kubeconfig (401). Learners there "
            "train on.",
            "Make the Secret again (`diloco cluster kubeconfig`); the operator uses it at once.",
        ),
        Reason.CLUSTER_FORBIDDEN: warning(
            "The operator lacks a right in a region's cluster (403); the message names the verb and the kind of "
            "object. The rest goes on.",
            "Ask the owner of that cluster for the rule: `diloco cluster prepare` prints the whole Role, `diloco "
            "cluster check` shows what is missing.",
        ),
        Reason.CLUSTER_UNREACHABLE: warning(
            "A region's API server cannot be reached, does not answer within 5 s, or answers with 5xx. Learners there "
            "train on; nothing is changed there.",
            "If it lasts, check that cluster and the network to its API server. The operator asks again at least once "
            "a minute.",
        ),
        Reason.CONFIGURATION_ERROR: warning(
            "A container exited with code 2: its manifest, data, a file or an address is wrong. The message quotes "
            "its last line.",
            "Fix what the message names. A pool's image, `env` and `podTemplate` can be changed while the job is "
            "suspended. `No such option`: the image is older than the operator.",
        ),
        Reason.REFUSED: warning(
            "The syncer refused a learner (exit code 3): its certificate is for another job, another pod has its id, "
            "or the job has no such learner.",
            "Look for a second pod or process with this learner's id. After scaling up, this clears within seconds.",
        ),
        Reason.OUT_OF_MEMORY: warning(
            "A container was killed for using more memory than its limit.",
            "Raise `resources.limits.memory` of the pool or of `syncer` while the job runs, or apply a new job with a "
            "lower `batchSize` or `microBatchSize`.",
        ),
        Reason.IMAGE_PULL_FAILED: warning(
            "An image cannot be pulled: its name or tag is wrong, access is denied, or the registry is down.",
            "Check the image's name and `imagePullSecrets`. The kubelet retries.",
        ),
        Reason.POD_NOT_STARTED: warning(
            "No container of a pod can be started on its node: a Secret, ConfigMap or claim is missing, a disk is "
            "attached elsewhere, the image runs as root, or the node fails.",
            "Create what the message names. 'Multi-Attach': the old node still holds the disk, see 'A node is lost' "
            "below. If only one node fails, cordon it.",
        ),
        Reason.PODS_FORBIDDEN: warning(
            "Pods of a pool or of the syncer may not be created: a quota, Pod Security, a missing PriorityClass or an "
            "admission webhook prevents it.",
            "Fix what the message says. The pods' controller retries, with pauses of up to several minutes.",
        ),
        Reason.UNSCHEDULABLE: warning(
            "No node can take the pod: not enough of a resource, a selector that matches no node, or a taint. The job "
            "trains with its other learners.",
            "Nothing if nodes are being added. Otherwise lower `learners` or `resources`, or fix nodes. If the "
            "message names a claim whose node does not come back, delete the claim and the pod.",
        ),
        Reason.NODE_SUSPECT: warning(
            "Different learners keep crashing on one node, while others of their pools work on other nodes.",
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
            "A learner's node does not respond. The operator deletes the pod by force; the syncer turns its process "
            "away if it still runs.",
            "Nothing: a new pod takes its place on another node. See 'A node is lost' below.",
        ),
        Reason.OBJECT_REVERTED: warning(
            "Something keeps changing one of the job's objects, such as a pool's replicas. The message says which "
            "field and, if the API server knows it, who. The operator repairs the object once a minute.",
            "Remove the webhook's rule, the autoscaler or the second operator.",
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
            "it goes on, the syncer resets it, then puts it in quarantine for a while.",
            "Nothing at first. If it lasts, check its log, data and machine. If other pods on its node are affected "
            "too, cordon the node and delete the pod.",
        ),
        Reason.QUORUM_LOWERED: warning(
            "Learners were given up, are in quarantine or leave requests unanswered, and fewer than `sync.quorum` are "
            "left. Those make the quorum.",
            "Mend what made them fail, or scale a pool up. To make a job end instead, set "
            "`failurePolicy.minimumLearners` (needs a new job).",
        ),
        Reason.LEARNERS_NOT_ANSWERING: warning(
            "A learner is connected, but its outer gradients do not arrive in time, or it declines to send them. It "
            "sets no pace, and the quorum does not count it, until one arrives.",
            "Check its link ([links.md](links.md)) and `kubectl logs POD`, then its image and `podTemplate` for "
            "changed code.",
        ),
        Reason.LEARNERS_TOO_FAST: warning(
            "More than a quarter of a learner's reported steps do not count: it is faster than other learners show to "
            "be possible.",
            "Give learners on faster machines a pool of their own, with `regions[].pools[].speed`. If the machines "
            "are alike, look for changed code in its image or `podTemplate`.",
        ),
        Reason.LEARNERS_DISAGREEING: warning(
            "A learner's outer gradients have pointed against the others' (cosine below 0) for 24 merges or two turns "
            "of every fragment. They are still merged, clipped in size. Of two learners both are named.",
            "Compare its data, image and code with the others', and check its accelerator. If you do not trust it, "
            "list its index in the pool's `excludedIndices`.",
        ),
        Reason.LEARNERS_STALLED: warning(
            "Learners are connected but make no steps: their data is stuck, an accelerator hangs, or they load the "
            "model for longer than `sync.startupSeconds`. Merges continue without them.",
            "Of one that loads: check its link ([links.md](links.md)). Otherwise its process is restarted after "
            "`failurePolicy.stuckSeconds`; `kubectl logs POD --previous` then shows where each of its threads was.",
        ),
        Reason.LEARNERS_MISSING: warning(
            "Learner pods run but are not joined to the syncer: they load, cannot connect, or are no longer heard.",
            "`kubectl logs POD`. Check whether a NetworkPolicy or a service mesh blocks port 29400 of JOB-syncer, or "
            "DNS ([what learners need](maintenance.md#namespaces-with-rules)); for a region in another cluster, see "
            "[why a learner cannot connect](multi-cluster.md#why-a-learner-cannot-connect).",
        ),
        Reason.READMISSION_IGNORED: warning(
            "The annotation `diloco.dev/readmit` names what is no learner of the job, or one that is not given up; or "
            "the manifest is refused meanwhile.",
            "Correct it: ids of learners (`REGION/POOL/INDEX`), separated by commas. `LearnersGivenUp` says who is "
            "given up.",
        ),
        Reason.POD_DELETION_FORBIDDEN: warning(
            "The operator may not delete pods. So a learner that is out keeps its node, or one that should run again "
            "is held back.",
            "Upgrade the chart, or ask the cluster's owner for the right (`diloco cluster check`); an admission "
            "policy can prevent it too. For those that are held back, `kubectl delete pod` is enough.",
        ),
        Reason.ROLLOUT_WAITING: warning(
            "A pool's `resources` were changed, and some of its pods keep the old ones. The operator replaces one "
            "learner at a time, only while the others are ready and it may delete pods.",
            "Fix the learner that it waits for, or `kubectl delete pod` those that wait: each comes back with the new "
            "template.",
        ),
        Reason.KUBECONFIG_DELETED: warning(
            "Someone has deleted the Secret with a region's kubeconfig. The finalizer `diloco.dev/in-use` keeps it "
            "until no job names it.",
            "To keep the region, remove the finalizers and make the Secret again (`diloco cluster kubeconfig`). To "
            "take the cluster away, remove the region, or the label `diloco.dev/cluster`.",
        ),
        Reason.CREDENTIALS_EXPIRING: warning(
            "The token or client certificate in a region's kubeconfig runs out soon, and the operator cannot renew it.",
            "Make the Secret again before that (`diloco cluster kubeconfig`). To have tokens renewed, ask the owner "
            "of that cluster for the rule that `diloco cluster prepare` prints.",
        ),
        Reason.BACKUP_FAILING: warning(
            "The syncer cannot upload backups. Training continues; if the volume is lost now, everything since the "
            "newest backup is lost.",
            "The message quotes the store: a wrong url, missing rights, a full bucket, no answer, another job on the "
            "same folder. The syncer retries. After a change of its Secret, suspend and resume the job.",
        ),
        Reason.TAPE_FAILING: warning(
            "The syncer's tape (its record of decisions, for `diloco replay`) is incomplete. Training is not affected.",
            "Check the volume: see 'The volume is full' below.",
        ),
        Reason.SCHEDULE_MISFIT: warning(
            "Settings of `sync` and the measured links or machines do not fit together. Part of the work is lost.",
            "The message lists remedies, each enough alone: a setting of `sync` (needs a new job), a faster link, "
            "more cores for the syncer (`syncer.resources`), longer steps. See [links.md](links.md).",
        ),
    }
)
