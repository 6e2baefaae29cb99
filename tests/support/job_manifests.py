"""Manifests for tests, as plain values: a valid one, a way to change it, and ones that set every field."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import yaml

from tests.support.golden import GOLDEN

GOOD: dict[str, Any] = yaml.safe_load("""
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: two-regions}
spec:
  model: {builtin: {preset: nano}}
  data: {text: {}}
  training: {tokens: 100000}
  regions:
  - {name: us-east, pools: [{name: new, learners: 2}, {name: old}]}
  - {name: us-west, pools: [{name: old, learners: 1}]}
""")
REMOVED = "REMOVED"
"""In place of a value: the field is not there."""


def changed(changes: Mapping[str, object]) -> dict[str, Any]:
    """GOOD with some fields set; a field's path is keys and positions joined by dots."""
    manifest = deepcopy(GOOD)
    for place, value in changes.items():
        *parents, last = [int(part) if part.isdecimal() else part for part in place.split(".")]
        node: Any = manifest
        for part in parents:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
        if value == REMOVED:
            del node[last]
        else:
            node[last] = value
    return manifest


def pods(*mounts: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pool's ``podTemplate`` with these fields of the pods' spec, and these mounts in the learner's container."""
    more = {"containers": [{"name": "learner", "volumeMounts": list(mounts)}]} if mounts else {}
    return {"podTemplate": {"spec": {**spec, **more}}}


EVERY_FIELD: dict[str, Any] = yaml.safe_load((GOLDEN / "every-field.yaml").read_text(encoding="utf-8"))
"""Every field that can stand beside the others."""

_FURTHER: list[dict[str, Any]] = yaml.safe_load("""
- metadata.name: own-code
  spec.model: {entrypoint: "mine.model:make", arguments: {layers: 3, rates: [0.1, {x: false}]}}
  spec.data: {entrypoint: "mine.corpus:source", arguments: {path: "s3://corpus"}}
- metadata.name: token-file
  spec.model: {builtin: {vocabularySize: 50257}}
  spec.data: {tokens: {path: /corpus.tokens}}
  spec.sync.compression: TopK
  spec.sync.density: 0.03125
- metadata.name: documents
  spec.model.builtin.vocabularySize: 50000
  spec.data: {documents: &documents {path: "/corpus/*.parquet", column: body, badRows: 0.01, tokenizer: /models/words}}
  spec.queue: {name: team, priorityClass: training}
- metadata.name: mixture
  spec.model.builtin.vocabularySize: 257
  spec.data:
    mixture:
    - {weight: 0.5, text: {path: /corpus, include: ["*.txt"]}}
    - {weight: 1, tokens: {path: /corpus.tokens}}
    - {weight: 3, documents: *documents}
- metadata.name: adapters
  spec.model:
    huggingface: {path: /models/base, weights: true}
    adapter: {rank: 8, alpha: 16, dropout: 0.1, targets: [q_proj, v_proj]}
- metadata.name: own-task
  spec.model: {entrypoint: "mine.model:make"}
  spec.data: REMOVED
  spec.task: {entrypoint: "mine.images:task", arguments: {path: /images}}
  spec.training.sequenceLength: 1
- metadata.name: own-loop
  spec.model: {entrypoint: "mine.model:make"}
  spec.data: REMOVED
  spec.loop: {entrypoint: "mine.loop:train", arguments: {rate: 0.1}}
  spec.training.sequenceLength: 1
- metadata.name: units
  spec.model.parallelize: mine.model:parallelize
  spec.regions.0.pools.0: {name: new, learners: 2, processesPerNode: 4, nodesPerLearner: 2, parallelism: DDP,
                           topologyKey: topology.kubernetes.io/zone}
""")
GOOD_JOBS = {job["metadata"]["name"]: job for job in (GOOD, EVERY_FIELD, *map(changed, _FURTHER))}
"""Good jobs by name; every field stands in one of them at least."""
OWN_CODE, TOKEN_FILE = GOOD_JOBS["own-code"], GOOD_JOBS["token-file"]
