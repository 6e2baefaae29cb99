"""Manifests for tests, as plain values: a valid one, a way to change it, and ones that set every field."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

GOOD: dict[str, Any] = {
    "apiVersion": "diloco.dev/v1alpha1",
    "kind": "DiLoCoJob",
    "metadata": {"name": "two-regions"},
    "spec": {
        "model": {"builtin": {"preset": "nano"}},
        "data": {"text": {}},
        "training": {"tokens": 100_000},
        "regions": [
            {"name": "us-east", "pools": [{"name": "new", "learners": 2}, {"name": "old"}]},
            {"name": "us-west", "pools": [{"name": "old", "learners": 1}]},
        ],
    },
}
REMOVED = object()


def changed(changes: Mapping[str, object]) -> dict[str, Any]:
    """GOOD with some fields set; a field's path is keys and positions joined by dots."""
    manifest = deepcopy(GOOD)
    for place, value in changes.items():
        *parents, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
        node: Any = manifest
        for part in parents:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
        if value is REMOVED:
            del node[last]
        else:
            node[last] = value
    return manifest


def pods(*mounts: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pool's ``podTemplate`` with these fields of the pods' spec, and these mounts in the learner's container."""
    more = {"containers": [{"name": "learner", "volumeMounts": list(mounts)}]} if mounts else {}
    return {"podTemplate": {"spec": {**spec, **more}}}


_KUBERNETES: dict[str, Any] = {
    "resources": {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"nvidia.com/gpu": 1},
        "claims": [{"name": "accelerator"}],
    },
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "EMPTY"}],
    "podTemplate": {
        "metadata": {"labels": {"team": "research"}, "annotations": {"example.com/note": "spot"}},
        "spec": {
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "containers": [
                {
                    "name": "learner",
                    "envFrom": [{"configMapRef": {"name": "tuning"}}],
                    "volumeMounts": [{"name": "corpus", "mountPath": "/corpus", "readOnly": True}],
                }
            ],
            "dnsConfig": {"nameservers": ["192.0.2.53"]},
            "dnsPolicy": "None",
            "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["store"]}],
            "imagePullSecrets": [{"name": "registry"}],
            "initContainers": [{"name": "fetch", "image": "example.com/fetch:1"}],
            "nodeSelector": {"example.com/accelerator": "fast"},
            "priorityClassName": "training",
            "resourceClaims": [{"name": "accelerator", "resourceClaimTemplateName": "big"}],
            "runtimeClassName": "nvidia",
            "schedulerName": "batch",
            "schedulingGates": [{"name": "example.com/quota"}],
            "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "4096 131072 67108864"}]},
            "serviceAccountName": "bucket",
            "tolerations": [
                {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "example.com/slow", "value": "true", "effect": "NoExecute", "tolerationSeconds": 60},
            ],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "volumes": [{"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus"}}],
        },
    },
}

EVERY_FIELD: dict[str, Any] = {
    "apiVersion": "diloco.dev/v1alpha1",
    "kind": "DiLoCoJob",
    "metadata": {"name": "every-field", "labels": {"team": "research"}},
    "spec": {
        "suspend": True,
        "image": "example.com/trainer:1",
        "model": {"builtin": {"preset": "micro", "vocabularySize": 300, "tieEmbeddings": False}},
        "data": {"text": {"path": "/corpus", "include": ["*.txt"]}, "documentMask": True, "holdoutFraction": 0.1},
        "training": {
            "tokens": 10_000_000,
            "sequenceLength": 256,
            "batchSize": 32,
            "microBatchSize": 8,
            "optimizer": {
                "type": "Muon",
                "muon": {"learningRate": 0.02, "momentum": 0.9, "weightDecay": 0.05},
                "groups": [
                    {"match": ["*.query.*"], "optimizer": "AdamW", "learningRateScale": 0.5, "weightDecay": 0.0}
                ],
                "learningRate": 1e-3,
                "beta1": 0.8,
                "beta2": 0.95,
                "epsilon": 1e-6,
                "weightDecay": 0.01,
                "warmupSteps": 10,
                "decay": "WSD",
                "decayFraction": 0.1,
                "finalFraction": 0.2,
                "clipNorm": 0.5,
            },
            "precision": "BF16",
            "seed": 7,
            "evaluation": {"everyTokens": 1_000_000, "sequences": 32},
            "checkpointEverySteps": 20,
        },
        "sync": {
            "fragments": 12,
            "interval": 48,
            "overlap": 4,
            "quorum": 2,
            "grace": {"safety": 0.25, "maximumSeconds": 5},
            "merge": "Mean",
            "tokenWeights": False,
            "anchor": "Current",
            "outerOptimizer": {"learningRate": 0.5, "momentum": 0.8},
            "compression": "Int8",
            "errorFeedback": False,
            "downlink": "BF16",
            "maxStalenessSteps": 100,
            "maxVersionLag": 2,
            "leaseSeconds": 20,
            "startupSeconds": 300,
        },
        "syncer": {
            "checkpointEverySeconds": 60,
            "maxCheckpoints": 3,
            "storage": {
                "size": "20Gi",
                "className": "fast",
                "accessMode": "ReadWriteOncePod",
                "whenDeleted": "Retain",
                "adoptRetained": True,
            },
            "backup": {
                "url": "s3://backups/every-field",
                "everySeconds": 900,
                "maxBackups": 5,
                "secretName": "store",
                "endpoint": "https://store.example.com:9000",
            },
            "tape": {"maxSize": "512Mi"},
            "image": "example.com/syncer:1",
            "env": [{"name": "LOG", "value": "1"}, {"name": "EMPTY"}],
            "resources": {
                "requests": {"memory": "8Gi"},
                "limits": {"memory": "8Gi"},
                "claims": [{"name": "accelerator"}],
            },
            "podTemplate": {
                "metadata": {"labels": {"team": "research"}, "annotations": {"example.com/note": "keep"}},
                "spec": {
                    **_KUBERNETES["podTemplate"]["spec"],
                    "containers": [{"name": "syncer", "envFrom": [{"configMapRef": {"name": "tuning"}}]}],
                },
            },
            "expose": {
                "type": "External",
                "host": "syncer.example.com",
                "port": 443,
                "annotations": {"example.com/internal": "true"},
                "sourceRanges": ["203.0.113.0/24"],
            },
        },
        "initFrom": {
            "url": "s3://backups/every-field",
            "type": "Weights",
            "backup": "20261123T020000Z-4f3a9c1e-000012-9bd2",
            "secretName": "store",
            "endpoint": "https://store.example.com:9000",
        },
        "regions": [
            {
                "name": "us-east",
                "connections": 32,
                "bandwidth": "500Mbit/s",
                "cluster": {"kubeconfigSecretRef": {"name": "east", "key": "config"}},
                "pools": [
                    {
                        "name": "new",
                        "learners": 5,
                        "minimumLearners": 1,
                        "fallbackAfterSeconds": 60,
                        "certificatesNotBefore": "2026-03-01T12:00:00Z",
                        "excludedIndices": [1, 3],
                        "batchSize": 64,
                        "image": "example.com/trainer@sha256:" + "0" * 64,
                        **_KUBERNETES,
                        "storage": {
                            "size": "2Gi",
                            "className": "fast",
                            "accessMode": "ReadWriteMany",
                            "whenDeleted": "Retain",
                            "whenScaled": "Delete",
                        },
                    },
                    {"name": "old", "learners": 2},
                ],
            },
            {"name": "us-west", "pools": [{"name": "old", "batchSize": "Auto"}]},
        ],
        "failurePolicy": {
            "maxRestartsPerLearner": 5,
            "minimumLearners": 2,
            "lostPods": {"action": "Wait", "afterSeconds": 120},
            "stuckSeconds": 900,
            "quarantineSeconds": 60,
        },
        "activeDeadlineSeconds": 86_400,
        "ttlSecondsAfterFinished": 3600,
    },
}
"""Every field that can stand beside the others."""

OWN_CODE = changed(
    {
        "metadata.name": "own-code",
        "spec.model": {"entrypoint": "mine.model:make", "arguments": {"layers": 3, "rates": [0.1, {"x": False}]}},
        "spec.data": {"entrypoint": "mine.corpus:source", "arguments": {"path": "s3://corpus"}},
    }
)
TOKEN_FILE = changed(
    {
        "metadata.name": "token-file",
        "spec.model": {"builtin": {"vocabularySize": 50_257}},
        "spec.data": {"tokens": {"path": "/corpus.tokens"}},
    }
)
_DOCUMENTS = {"path": "/corpus/*.parquet", "column": "body", "tokenizer": "/models/words"}
DOCUMENTS = changed(
    {"metadata.name": "documents", "spec.model.builtin.vocabularySize": 50_000, "spec.data": {"documents": _DOCUMENTS}}
)
MIXTURE = changed(
    {
        "metadata.name": "mixture",
        "spec.model.builtin.vocabularySize": 257,
        "spec.data": {
            "mixture": [
                {"weight": 0.5, "text": {"path": "/corpus", "include": ["*.txt"]}},
                {"weight": 1, "tokens": {"path": "/corpus.tokens"}},
                {"weight": 3, "documents": _DOCUMENTS},
            ]
        },
    }
)
ADAPTERS = changed(
    {
        "metadata.name": "adapters",
        "spec.model": {
            "huggingface": {"path": "/models/base", "weights": True},
            "adapter": {"rank": 8, "alpha": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]},
        },
    }
)
OWN_TASK = changed(
    {
        "metadata.name": "own-task",
        "spec.model": {"entrypoint": "mine.model:make"},
        "spec.data": REMOVED,
        "spec.task": {"entrypoint": "mine.images:task", "arguments": {"path": "/images"}},
        "spec.training.sequenceLength": 1,
    }
)
OWN_LOOP = changed(
    {
        "metadata.name": "own-loop",
        "spec.model": {"entrypoint": "mine.model:make"},
        "spec.data": REMOVED,
        "spec.loop": {"entrypoint": "mine.loop:train", "arguments": {"rate": 0.1}},
        "spec.training.sequenceLength": 1,
    }
)
UNITS = changed(
    {
        "metadata.name": "units",
        "spec.model.parallelize": "mine.model:parallelize",
        "spec.regions.0.pools.0": {
            "name": "new",
            "learners": 2,
            "processesPerNode": 4,
            "nodesPerLearner": 2,
            "parallelism": "DDP",
            "topologyKey": "topology.kubernetes.io/zone",
        },
    }
)
_FURTHER = (OWN_CODE, TOKEN_FILE, DOCUMENTS, MIXTURE, ADAPTERS, OWN_TASK, OWN_LOOP, UNITS)
GOOD_JOBS = {job["metadata"]["name"]: job for job in (GOOD, EVERY_FIELD, *_FURTHER)}
"""Good jobs by name; every field stands in one of them at least."""
