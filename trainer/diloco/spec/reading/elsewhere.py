"""Fields that people write where the manifest has none: what to do instead.

Names of Kubernetes, of torch and of trainers. A name that only has another place in the manifest needs no line here:
``translate`` finds it.
"""

from collections.abc import Mapping
from typing import Final

_OPERATORS: Final = "is set by the operator; remove it"
_NODE: Final = (
    "is not allowed, as a job's pods get no access to their node; for RDMA use a device plugin's resource in "
    "resources.limits, such as rdma/hca_shared_devices_a"
)
_UNPRIVILEGED: Final = (
    "is set by the operator, as containers run without privileges; for devices use a device plugin's resource in "
    "resources.limits, for a volume's group podTemplate.spec.securityContext.fsGroup"
)
_CONTAINER: Final = (
    "is not a field of the operator's container; use {0} beside podTemplate or, for a sidecar, initContainers with "
    "restartPolicy: Always"
)
_FIXED: Final = f"{_OPERATORS} or, for a sidecar, use initContainers with restartPolicy: Always"
_BUDGET: Final = "is not a field here, as the budget is in tokens; use tokens"
_PRECISION: Final = "is not a field here; use precision: BF16"

ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "PodSpec": {
        **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC"), _NODE),
        **dict.fromkeys(
            (
                "automountServiceAccountToken",
                "enableServiceLinks",
                "hostname",
                "restartPolicy",
                "setHostnameAsFQDN",
                "subdomain",
                "terminationGracePeriodSeconds",
            ),
            _OPERATORS,
        ),
        "nodeName": "is not allowed, as it bypasses the scheduler; use nodeSelector or affinity",
        "priority": "is not allowed; use priorityClassName",
        "shareProcessNamespace": "is not allowed, as sidecars get no access to our processes; remove it",
    },
    "PodSecurity": dict.fromkeys(
        (
            "fsGroupChangePolicy",
            "runAsGroup",
            "runAsNonRoot",
            "runAsUser",
            "seLinuxOptions",
            "seccompProfile",
            "supplementalGroups",
        ),
        "is set by the operator, as pods run by the Pod Security Standard 'restricted'; use fsGroup for a volume's "
        "group, or remove it",
    ),
    "OwnContainer": {
        **{name: _CONTAINER.format(name) for name in ("env", "image", "resources")},
        **dict.fromkeys(
            (
                "args",
                "command",
                "lifecycle",
                "livenessProbe",
                "ports",
                "readinessProbe",
                "startupProbe",
                "terminationMessagePath",
                "terminationMessagePolicy",
                "workingDir",
            ),
            _FIXED,
        ),
        "securityContext": _UNPRIVILEGED,
    },
    "Pool": {
        **dict.fromkeys(("count", "replicas", "workers"), "is not a field here; did you mean learners?"),
        **dict.fromkeys(("gpu", "gpus"), "is not a field here; use resources: {limits: {nvidia.com/gpu: 1}}"),
    },
    "TrainingSpec": {
        "lr": "is not a field here; did you mean spec.training.optimizer.learningRate?",
        **dict.fromkeys(
            ("epochs", "maxEpochs", "numEpochs", "numTrainEpochs"), f"{_BUDGET}, those of an epoch times the epochs"
        ),
        **dict.fromkeys(
            ("maxSteps", "numSteps", "steps", "trainSteps"),
            f"{_BUDGET}, steps times batchSize times sequenceLength times the learners",
        ),
        **dict.fromkeys(("amp", "bf16", "dtype", "fp16", "mixedPrecision"), _PRECISION),
        "gradientCheckpointing": "is not a field here; use activationCheckpointing: Full",
        "gradientAccumulationSteps": "is not a field here; use microBatchSize, sequences in one forward pass",
    },
    "InnerOptimizer": {
        "betas": "is not a field here; use beta1 and beta2",
        "eps": "is not a field here; did you mean epsilon?",
        **dict.fromkeys(("lrScheduler", "schedule", "scheduler"), "is not a field here; use decay and warmupSteps"),
        "lr": "is not a field here; did you mean learningRate?",
        **dict.fromkeys(("maxGradNorm", "gradientClipping"), "is not a field here; did you mean clipNorm?"),
        "name": "is not a field here; did you mean type?",
    },
}
"""What to say of a field, by the model that lacks it and the field's name."""
