"""Invalid manifests with the errors of ``diloco`` and of an API server with the custom resource's schema.

Both must refuse each and name the field. If the API server's own schema refuses it, the text is Kubernetes'; if one of
our rules does, it is the same as ``diloco``'s.
"""

from dataclasses import dataclass
from typing import Any

from tests.support.job_manifests import REMOVED, changed


@dataclass(frozen=True)
class BadManifest:
    """One way to be wrong."""

    changes: dict[str, object]
    """What is changed in a good manifest."""
    field: str
    """The field that both name."""
    words: str
    """What the API server says of it."""
    local_words: str = ""
    """What ``diloco`` says of it, where that is something else."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole of it."""
        return changed(self.changes)


_POOL = "spec.regions[0].pools[0]"
_TEXT_AND_ALL = {"text": {}, "tokens": {"path": "x"}, "entrypoint": "a.b:c"}
_LABEL = "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'"

BY_SCHEMA = [
    BadManifest({"metadata.name": "a" * 64}, "metadata.name", "may not be more than 63", "is too long"),
    BadManifest({"metadata.name": "two.regions"}, "metadata.name", _LABEL, "does not fit"),
    BadManifest({"spec": REMOVED}, "spec", "Required value", "is missing"),
    BadManifest({"spec": []}, "spec", "must be of type object", "is not a mapping"),
    BadManifest({"spec.sync.quorom": 1}, "spec.sync.quorom", "unknown field", "is not a field here"),
    BadManifest(
        {"spec.sync.max_staleness_steps": 9}, "spec.sync.max_staleness_steps", "unknown field", "is not a field"
    ),
    BadManifest({"spec.quorum": 1}, "spec.quorum", "unknown field", "is not a field here"),
    BadManifest({"spec.regions.0.pools.0.learner": 1}, f"{_POOL}.learner", "unknown field", "is not a field here"),
    BadManifest(
        {"spec.regions.0.pools.0.resources": {"limit": {"nvidia.com/gpu": 1}}},
        f"{_POOL}.resources.limit",
        "unknown field",
        "did you mean limits?",
    ),
    BadManifest(
        {"spec.syncer.resources": {"limit": {"cpu": "2"}}},
        "spec.syncer.resources.limit",
        "unknown field",
        "did you mean limits?",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.tolerations": [{"key": "example.com/spot", "seconds": 60}]},
        f"{_POOL}.tolerations[0].seconds",
        "unknown field",
        "is not a field here",
    ),
    BadManifest({"spec.training": REMOVED}, "spec.training", "Required value", "is missing"),
    BadManifest({"spec.training": {}}, "spec.training.tokens", "Required value", "is missing"),
    BadManifest({"spec.model": None}, "spec.model", "Required value", "is not a mapping"),
    BadManifest({"spec.data.tokens": {}}, "spec.data.tokens.path", "Required value", "is missing"),
    BadManifest({"spec.regions.0.name": REMOVED}, "spec.regions[0].name", "Required value", "is missing"),
    BadManifest({"spec.training.tokens": "many"}, "spec.training.tokens", "must be of type integer", "not an integer"),
    BadManifest({"spec.training.tokens": 2.5}, "spec.training.tokens", "must be of type integer", "not an integer"),
    BadManifest({"spec.training.tokens": 0}, "spec.training.tokens", "greater than or equal to 1", "is too small"),
    BadManifest({"spec.training.seed": 2**31}, "spec.training.seed", "less than or equal to 2147483647", "too large"),
    BadManifest({"spec.suspend": "yes"}, "spec.suspend", "must be of type boolean", "is not true or false"),
    BadManifest({"spec.image": 1.5}, "spec.image", "must be of type string", "is not text"),
    BadManifest({"spec.image": ""}, "spec.image", "at least 1 chars long", "is too short"),
    BadManifest({"spec.image": "x" * 1025}, "spec.image", "may not be more than 1024", "is too long"),
    BadManifest({"spec.regions": {}}, "spec.regions", "must be of type array", "is not a list"),
    BadManifest({"spec.regions": []}, "spec.regions", "should have at least 1 items", "is too short"),
    BadManifest({"spec.regions.1.pools": []}, "spec.regions[1].pools", "should have at least 1 items", "is too short"),
    BadManifest({"spec.regions.0.name": "US_East"}, "spec.regions[0].name", _LABEL, "does not fit"),
    BadManifest(
        {"spec.regions.0.pools.0.learners": -1}, f"{_POOL}.learners", "greater than or equal to 0", "is too small"
    ),
    BadManifest(
        {"spec.regions.0.pools.0.minimumLearners": -1},
        f"{_POOL}.minimumLearners",
        "greater than or equal to 0",
        "is too small",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.learners": {"min": 1, "max": 2}},
        f"{_POOL}.learners",
        "unknown field",
        "is not an integer",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.nodeSelector": {"gpu": 1}},
        f"{_POOL}.nodeSelector.gpu",
        "must be of type string",
        "is not text",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.env": [{"name": "A"}] * 257},
        f"{_POOL}.env",
        "must have at most 256 items",
        "is too long",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.nodeSelector": {f"label-{n}": "" for n in range(65)}},
        f"{_POOL}.nodeSelector",
        "must have at most 64 items",
        "is too long",
    ),
    BadManifest({"spec.model.builtin.preset": "huge"}, "spec.model.builtin.preset", "Unsupported value", "not known"),
    BadManifest(
        {"spec.training.optimizer.kind": "Adam"}, "spec.training.optimizer.kind", "Unsupported value", "is not known"
    ),
    BadManifest(
        {"spec.training.optimizer": {"kind": "Muon", "muon": {"momentum": 1}}},
        "spec.training.optimizer.muon.momentum",
        "should be less than 1",
        "is too large",
    ),
    BadManifest(
        {"spec.training.optimizer": {"kind": "Muon", "muon": {"nesterov": True}}},
        "spec.training.optimizer.muon.nesterov",
        "unknown field",
        "is not a field here",
    ),
    BadManifest(
        {"spec.training.optimizer": {"kind": "Muon", "muon": {"exclude": "router.*"}}},
        "spec.training.optimizer.muon.exclude",
        "must be of type array",
        "is not a list",
    ),
    BadManifest(
        {"spec.failurePolicy": {"lostPods": {"action": "Delete"}}},
        "spec.failurePolicy.lostPods.action",
        "Unsupported value",
        "is not known",
    ),
    BadManifest(
        {"spec.failurePolicy": {"lostPods": {"afterSeconds": 5}}},
        "spec.failurePolicy.lostPods.afterSeconds",
        "greater than or equal to 10",
        "is too small",
    ),
    BadManifest({"spec.sync.merge": "Average"}, "spec.sync.merge", "Unsupported value", "is not known"),
    BadManifest({"spec.sync.fragments": 4097}, "spec.sync.fragments", "less than or equal to 4096", "is too large"),
    BadManifest({"spec.sync.grace.safety": 1}, "spec.sync.grace.safety", "should be less than 1", "is too large"),
    BadManifest(
        {"spec.sync.outerOptimizer": {"learningRate": 0, "momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate",
        "should be greater than 0",
        "is too small",
    ),
    BadManifest(
        {"spec.sync.outerOptimizer": {"momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate",
        "Required value",
        "is missing",
    ),
    BadManifest({"spec.syncer.storage.size": "10 GB"}, "spec.syncer.storage.size", "should match", "does not fit"),
    BadManifest(
        {"spec.model": {"entrypoint": "package.module"}}, "spec.model.entrypoint", "should match", "does not fit"
    ),
    BadManifest(
        {"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "greater than or equal to 1", "is too small"
    ),
    BadManifest({"spec.regions.1.name": "us-east"}, "spec.regions[1]", "Duplicate value", "is also the name of"),
    BadManifest(
        {"spec.regions.0.pools.1.name": "new"}, "spec.regions[0].pools[1]", "Duplicate value", "is also the name of"
    ),
]
"""Refused by types, bounds, patterns and list keys."""

BY_RULE = [
    BadManifest(
        {"spec.model": {}},
        "spec.model",
        "has none of builtin and entrypoint; use exactly one of builtin and entrypoint",
    ),
    BadManifest(
        {"spec.model.entrypoint": "a.b:c"},
        "spec.model",
        "has builtin and entrypoint; use exactly one of builtin and entrypoint",
    ),
    BadManifest(
        {"spec.model.arguments.layers": 3},
        "spec.model.arguments",
        "has no use with builtin; remove it or use entrypoint",
    ),
    BadManifest(
        {"spec.data": {}},
        "spec.data",
        "has none of text, tokens and entrypoint; use exactly one of text, tokens and entrypoint",
    ),
    BadManifest(
        {"spec.data.tokens.path": "corpus.tokens"},
        "spec.data",
        "has text and tokens; use exactly one of text, tokens and entrypoint",
    ),
    BadManifest(
        {"spec.data": _TEXT_AND_ALL},
        "spec.data",
        "has text, tokens and entrypoint; use exactly one of text, tokens and entrypoint",
    ),
    BadManifest({"spec.data.arguments.path": "x"}, "spec.data.arguments", "has no use with text; remove it or use"),
    BadManifest(
        {"spec.data": {"tokens": {"path": "corpus.tokens"}}},
        "spec.model.builtin.vocabularySize",
        "is missing; with spec.data.tokens give the number of token ids",
    ),
    BadManifest(
        {"spec.data": {"entrypoint": "mine.corpus:source"}},
        "spec.model.builtin.vocabularySize",
        "is missing; with spec.data.entrypoint give the number of token ids",
    ),
    BadManifest(
        {"spec.model.builtin.vocabularySize": 256},
        "spec.model.builtin.vocabularySize",
        "256 is below the 257 ids of spec.data.text (256 bytes and an end of document); use at least 257",
    ),
    BadManifest(
        {"spec.training.evaluation.everyTokens": 100_001},
        "spec.training.evaluation.everyTokens",
        "100001 is above spec.training.tokens, 100000; use 1 to 100000 or leave it out",
    ),
    BadManifest(
        {"spec.training.tokens": 2047},
        "spec.training.tokens",
        "2047 is below one inner step, 16 sequences of 128 tokens; use at least 2048",
    ),
    BadManifest(
        {"spec.regions.1.pools.0.batchSize": 1024},
        "spec.training.tokens",
        "100000 is below one inner step, 1024 sequences of 128 tokens; use at least 131072",
    ),
    BadManifest(
        {"spec.regions.0.pools.1.fallbackAfterSeconds": 60},
        "spec.regions[0].pools",
        "old is the last pool of us-east, so there is none for its fallbackAfterSeconds; remove that, or put a pool "
        "after it",
    ),
    BadManifest(
        {"spec.regions.1.pools.0.batchSize": "Auto", "spec.training.tokens": 2047},
        "spec.training.tokens",
        "2047 is below one inner step, 16 sequences of 128 tokens; use at least 2048",
    ),
    BadManifest(
        {"spec.regions.1.pools.0.batchSize": "auto"},
        "spec.regions[1].pools[0].batchSize",
        '"auto" is not known; use Auto or an integer from 1 to 65536',
    ),
    BadManifest(
        {"spec.regions.1.pools.0.batchSize": 0},
        "spec.regions[1].pools[0].batchSize",
        "0 is too small; use Auto or an integer from 1 to 65536",
    ),
    BadManifest(
        {"spec.regions.1.pools.0.batchSize": 65_537},
        "spec.regions[1].pools[0].batchSize",
        "65537 is too large; use Auto or an integer from 1 to 65536",
    ),
    BadManifest(
        {"spec.training.optimizer.muon": {}},
        "spec.training.optimizer.muon",
        "has no use with kind AdamW; remove it or use kind Muon",
    ),
    BadManifest(
        {"spec.training.optimizer": {"kind": "AdamW", "muon": {"learningRate": 0.02}}},
        "spec.training.optimizer.muon",
        "has no use with kind AdamW; remove it or use kind Muon",
    ),
    BadManifest({"spec.sync.overlap": 24}, "spec.sync.overlap", "24 is not below spec.sync.interval, 24; use 0 to 23"),
    BadManifest(
        {"spec.sync.interval": 1, "spec.sync.overlap": 2},
        "spec.sync.overlap",
        "2 is not below spec.sync.interval, 1; use 0",
    ),
    BadManifest(
        {"spec.sync.overlap": "auto"},
        "spec.sync.overlap",
        '"auto" is not known; use Auto or an integer from 0 to 1000000',
    ),
    BadManifest(
        {"spec.sync.overlap": -1}, "spec.sync.overlap", "-1 is too small; use Auto or an integer from 0 to 1000000"
    ),
    BadManifest(
        {"spec.sync.overlap": 1_000_001},
        "spec.sync.overlap",
        "1000001 is too large; use Auto or an integer from 0 to 1000000",
    ),
    BadManifest({"spec.sync.quorum": 5}, "spec.sync.quorum", "5 is above the 4 learners of spec.regions; use 1 to 4"),
    BadManifest(
        {"spec.regions": [{"name": "here", "pools": [{"name": "cpu"}]}], "spec.sync.quorum": 2},
        "spec.sync.quorum",
        "2 is above the 1 learner of spec.regions; use 1",
    ),
    BadManifest(
        {"spec.sync.maxStalenessSteps": 23},
        "spec.sync.maxStalenessSteps",
        "23 is below spec.sync.interval, 24, so every learner would pause for good; use at least 24",
    ),
    BadManifest(
        {"spec.regions.1.cluster": {"kubeconfigSecret": {"name": "west"}}},
        "spec.syncer.expose.type",
        "ClusterIP cannot be reached from the other cluster of region us-west; use NodePort, LoadBalancer or External",
        "ClusterIP cannot be reached from the other cluster of spec.regions[1]; use NodePort, LoadBalancer or External",
    ),
    BadManifest(
        {"spec.syncer.backup": {"url": "gs://kept/mine", "endpoint": "https://store.example.com"}},
        "spec.syncer.backup.endpoint",
        "has a use only with a url that begins with s3://; remove it",
    ),
    BadManifest(
        {"spec.syncer.backup": {"url": "s3://kept/model.safetensors"}},
        "spec.syncer.backup.url",
        "s3://kept/model.safetensors names a file; use a folder",
    ),
    BadManifest(
        {"spec.initFrom": {"url": "/kept", "endpoint": "https://store.example.com"}},
        "spec.initFrom.endpoint",
        "has a use only with a url that begins with s3://; remove it",
    ),
    BadManifest(
        {"spec.initFrom": {"url": "/kept/model.safetensors"}},
        "spec.initFrom.kind",
        "Resume needs a folder of backups; use Weights with an exported model",
    ),
    BadManifest(
        {"spec.initFrom": {"url": "/kept/model.safetensors", "kind": "Weights", "backup": "a"}},
        "spec.initFrom.backup",
        "has no use with a url of one exported model; remove it",
    ),
    BadManifest(
        {"spec.syncer.expose": {"type": "LoadBalancer", "host": "a.example"}},
        "spec.syncer.expose.host",
        "has no use with type LoadBalancer; remove it or use type NodePort or External",
    ),
    BadManifest(
        {"spec.syncer.expose": {"type": "External", "port": 443}},
        "spec.syncer.expose.host",
        "is missing; with type External give what leads to the syncer",
    ),
    BadManifest(
        {"spec.syncer.expose": {"type": "NodePort", "host": "a.example", "port": 443}},
        "spec.syncer.expose.port",
        "has no use with type NodePort; remove it or use type External",
    ),
    BadManifest(
        {"spec.syncer.expose": {"type": "External", "host": "a.example"}},
        "spec.syncer.expose.port",
        "is missing; with type External give what leads to the syncer",
    ),
    BadManifest(
        {
            "spec.regions.1.cluster": {"kubeconfigSecret": {"name": "west"}},
            "spec.syncer.expose": {"type": "NodePort"},
        },
        "spec.syncer.expose.host",
        "is missing; with type NodePort and a region in another cluster give the address of a node",
    ),
    BadManifest(
        {"spec.regions": [{"name": "here", "pools": [{"name": "cpu", "learners": 0}]}]},
        "spec.regions",
        "have 0 learners in all; use at least 1",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.learners": 9_999}, "spec.regions", "have 10001 learners in all; use at most 10000"
    ),
    BadManifest(
        {"spec.regions.0.pools.0.minimumLearners": 3},
        f"{_POOL}.minimumLearners",
        "3 is above learners, 2; use 0 to 2 or leave it out",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.excludedIndices": [2]},
        f"{_POOL}.excludedIndices",
        "names an index that is not below learners, 2; use smaller ones",
        "2 is no index of the pool, which has learners: 2; use 0 to 1",
    ),
    BadManifest(
        {"spec.regions.0.pools.0.excludedIndices": [0], "spec.regions.0.pools.0.minimumLearners": 2},
        f"{_POOL}.minimumLearners",
        "2 is above learners less excludedIndices, 1; use 0 to 1 or leave it out",
    ),
    BadManifest(
        {"spec.failurePolicy.minimumLearners": 2},
        "spec.failurePolicy.minimumLearners",
        "2 has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; give both",
    ),
    BadManifest(
        {"spec.failurePolicy": {"minimumLearners": 5, "maxRestartsPerLearner": 1}},
        "spec.failurePolicy.minimumLearners",
        "5 is above the 4 learners of spec.regions; use 0 to 4",
    ),
    BadManifest(
        {"spec.regions.1.pools.0.nodesPerLearner": 2},
        "spec.regions[1].pools[0].nodesPerLearner",
        "2 is not supported yet: a learner is one pod; use 1 or leave it out",
    ),
]
"""Refused by a rule of ours, in CEL."""
