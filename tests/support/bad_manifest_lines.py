"""Every way a manifest can be wrong, as changes to a valid one, and the one line that ``diloco`` prints for it."""

from tests.support.job_manifests import REMOVED

FIELD = "is not a field here; "
LEARNERS_POOL = "spec.regions[0].pools[0]"
CASES: list[tuple[dict[str, object], str]] = [
    # Top level.
    ({"apiVersion": "v1"}, 'apiVersion: "v1" is not known; use diloco.dev/v1alpha1'),
    ({"apiVersion": REMOVED}, "apiVersion: is missing; use diloco.dev/v1alpha1"),
    ({"kind": "DilocoJob"}, 'kind: "DilocoJob" is not known; use DiLoCoJob'),
    ({"metadata": REMOVED}, "metadata: is missing; use a mapping with name"),
    (
        {"metadata.name": "Two_Regions"},
        (
            'metadata.name: "Two_Regions" does not fit; '
            "use a name of lower-case letters, digits and inner hyphens, at most 63 characters"
        ),
    ),
    (
        {"metadata.name": "a" * 64},
        (
            f'metadata.name: "{"a" * 56}... is too long; '
            "use a name of lower-case letters, digits and inner hyphens, at most 63 characters"
        ),
    ),
    ({"metadata.name": 7}, "metadata.name: 7 is not text; put it in quotes"),
    ({"spec": REMOVED}, "spec: is missing; use a mapping with model, data, training and regions"),
    (
        {"spec": []},
        (
            "spec: a list of 0 is not a mapping; its fields are suspend, image, model, data, training, sync, syncer, "
            "initFrom, regions, failurePolicy, activeDeadlineSeconds and ttlSecondsAfterFinished"
        ),
    ),
    # Fields that are not there.
    ({"spec.sync.quorom": 1}, f"spec.sync.quorom: {FIELD}did you mean quorum?"),
    ({"spec.sync.max_staleness_steps": 99}, f"spec.sync.max_staleness_steps: {FIELD}did you mean maxStalenessSteps?"),
    (
        {"spec.sync.batch": 1},
        (
            f"spec.sync.batch: {FIELD}use fragments, interval, overlap, quorum, grace, merge, "
            "tokenWeights, anchor, outerOptimizer, compression, errorFeedback, downlink, maxStalenessSteps, "
            "maxVersionLag, leaseSeconds or startupSeconds"
        ),
    ),
    ({"spec.quorum": 1}, f"spec.quorum: {FIELD}did you mean spec.sync.quorum?"),
    ({"spec.nodeSelector": {}}, f"spec.nodeSelector: {FIELD}did you mean spec.regions[].pools[].nodeSelector?"),
    ({"spec.regions.0.pools.0.learner": 1}, f"{LEARNERS_POOL}.learner: {FIELD}did you mean learners?"),
    ({"Spec": {}}, f"Spec: {FIELD}did you mean spec?"),
    (
        {"spec.regions.0.pools.0.resources": {"limit": {"nvidia.com/gpu": 1}}},
        f"{LEARNERS_POOL}.resources.limit: {FIELD}did you mean limits?",
    ),
    ({"spec.syncer.resources": {"limit": {"cpu": "2"}}}, f"spec.syncer.resources.limit: {FIELD}did you mean limits?"),
    (
        {"spec.regions.0.pools.0.tolerations": [{"key": "example.com/spot", "seconds": 60}]},
        f"{LEARNERS_POOL}.tolerations[0].seconds: {FIELD}use key, operator, value, effect or tolerationSeconds",
    ),
    # Missing and null.
    ({"spec.training": REMOVED}, "spec.training: is missing; use a mapping with tokens"),
    ({"spec.training": {}}, "spec.training.tokens: is missing; use an integer from 1 to 1000000000000000"),
    (
        {"spec.sync": None},
        (
            "spec.sync: null is not a mapping; its fields are fragments, interval, overlap, quorum, "
            "grace, merge, tokenWeights, anchor, outerOptimizer, compression, errorFeedback, downlink, "
            "maxStalenessSteps, maxVersionLag, leaseSeconds and startupSeconds"
        ),
    ),
    ({"spec.training.seed": None}, "spec.training.seed: null is not an integer; use an integer from 0 to 2147483647"),
    # Wrong types.
    (
        {"spec.training.tokens": "many"},
        'spec.training.tokens: "many" is not an integer; use an integer from 1 to 1000000000000000',
    ),
    ({"spec.training.tokens": "200"}, 'spec.training.tokens: "200" is not an integer; remove the quotes'),
    (
        {"spec.training.tokens": 2.5},
        "spec.training.tokens: 2.5 is not an integer; use an integer from 1 to 1000000000000000",
    ),
    (
        {"spec.training.tokens": True},
        "spec.training.tokens: true is not an integer; use an integer from 1 to 1000000000000000",
    ),
    ({"spec.suspend": "yes"}, 'spec.suspend: "yes" is not true or false'),
    ({"spec.suspend": 1}, "spec.suspend: 1 is not true or false"),
    ({"spec.image": 1.5}, "spec.image: 1.5 is not text; put it in quotes"),
    (
        {"spec.regions.0.bandwidth": "500Mbps"},
        (
            'spec.regions[0].bandwidth: "500Mbps" does not fit; use a rate such as 500Mbit/s or 62.5MB/s, at most 20 '
            "characters"
        ),
    ),
    (
        {"spec.failurePolicy": {"lostPods": {"action": "Delete"}}},
        'spec.failurePolicy.lostPods.action: "Delete" is not known; use Replace or Wait',
    ),
    (
        {"spec.failurePolicy": {"lostPods": {"afterSeconds": 5}}},
        "spec.failurePolicy.lostPods.afterSeconds: 5 is too small; use an integer from 10 to 86400",
    ),
    ({"spec.regions.0.connections": 65}, "spec.regions[0].connections: 65 is too large; use an integer from 1 to 64"),
    ({"spec.regions": {}}, "spec.regions: a mapping is not a list; use a list of 1 to 64 items"),
    (
        {"spec.regions.0": "us-east"},
        'spec.regions[0]: "us-east" is not a mapping; its fields are name, cluster, connections, bandwidth and pools',
    ),
    (
        {"spec.regions.0.pools.0.nodeSelector": {"gpu": 1}},
        f"{LEARNERS_POOL}.nodeSelector.gpu: 1 is not text; put it in quotes",
    ),
    (
        {"spec.regions.0.pools.0.tolerations": {}},
        f"{LEARNERS_POOL}.tolerations: a mapping is not a list; use a list of 0 to 64 items",
    ),
    # Enumerations and forms.
    (
        {"spec.model.builtin.preset": "huge"},
        'spec.model.builtin.preset: "huge" is not known; use pico, nano, micro, mini or gpt2',
    ),
    ({"spec.sync.merge": "Average"}, 'spec.sync.merge: "Average" is not known; use RDA or Mean'),
    ({"spec.sync.compression": None}, "spec.sync.compression: null is not known; use None, BF16, Int8 or Int4"),
    ({"spec.training.optimizer.kind": "muon"}, 'spec.training.optimizer.kind: "muon" is not known; use AdamW or Muon'),
    ({"spec.sync.anchor": ["Received"]}, "spec.sync.anchor: a list of 1 is not known; use Received or Current"),
    (
        {"spec.model": {"entrypoint": "package.module"}},
        'spec.model.entrypoint: "package.module" does not fit; use package.module:factory, at most 253 characters',
    ),
    (
        {"spec.syncer.storage.size": "10 GB"},
        ('spec.syncer.storage.size: "10 GB" does not fit; use a quantity of bytes such as 10Gi, at most 20 characters'),
    ),
    ({"spec.image": ""}, 'spec.image: "" is too short; use text of 1 to 1024 characters'),
    # Ranges.
    ({"spec.sync.fragments": 0}, "spec.sync.fragments: 0 is too small; use an integer from 1 to 4096"),
    ({"spec.sync.fragments": 4097}, "spec.sync.fragments: 4097 is too large; use an integer from 1 to 4096"),
    ({"spec.sync.grace.safety": 1}, "spec.sync.grace.safety: 1 is too large; use a number of at least 0 and below 1"),
    (
        {"spec.sync.outerOptimizer": {"learningRate": 0, "momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate: 0 is too small; use a number above 0 and at most 10",
    ),
    (
        {"spec.sync.outerOptimizer": {"momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate: is missing; use a number above 0 and at most 10",
    ),
    (
        {"spec.data.holdoutFraction": 0.7},
        "spec.data.holdoutFraction: 0.7 is too large; use a number above 0 and at most 0.5",
    ),
    (
        {"spec.training.optimizer.learningRate": float("inf")},
        "spec.training.optimizer.learningRate: Infinity is not finite; use a number above 0 and at most 10",
    ),
    (
        {"spec.activeDeadlineSeconds": 0},
        "spec.activeDeadlineSeconds: 0 is too small; use an integer from 1 to 2147483647",
    ),
    ({"spec.regions": []}, "spec.regions: a list of 0 is too short; use a list of 1 to 64 items"),
    ({"spec.regions.1.pools": []}, "spec.regions[1].pools: a list of 0 is too short; use a list of 1 to 64 items"),
    # One of several.
    ({"spec.model": {}}, "spec.model: has none of builtin and entrypoint; use exactly one of builtin and entrypoint"),
    (
        {"spec.model.entrypoint": "a.b:c"},
        "spec.model: has builtin and entrypoint; use exactly one of builtin and entrypoint",
    ),
    (
        {"spec.data": {}},
        "spec.data: has none of text, tokens and entrypoint; use exactly one of text, tokens and entrypoint",
    ),
    (
        {"spec.data.tokens.path": "corpus.tokens"},
        "spec.data: has text and tokens; use exactly one of text, tokens and entrypoint",
    ),
    ({"spec.model.arguments.layers": 3}, "spec.model.arguments: has no use with builtin; remove it or use entrypoint"),
    (
        {"spec.model": {"entrypoint": "a.b:c", "arguments": {"layers": [1, {"width": None}]}}},
        "spec.model.arguments.layers[1].width: null cannot be passed on; leave it out",
    ),
    ({"spec.data.arguments.path": "x"}, "spec.data.arguments: has no use with text; remove it or use entrypoint"),
    # What cannot be together.
    (
        {"spec.training.optimizer.muon.learningRate": 0.02},
        "spec.training.optimizer.muon: has no use with kind AdamW; remove it or use kind Muon",
    ),
    ({"spec.sync.quorum": 5}, "spec.sync.quorum: 5 is above the 4 learners of spec.regions; use 1 to 4"),
    (
        {"spec.regions": [{"name": "here", "pools": [{"name": "cpu"}]}], "spec.sync.quorum": 2},
        "spec.sync.quorum: 2 is above the 1 learner of spec.regions; use 1",
    ),
    ({"spec.sync.overlap": 24}, "spec.sync.overlap: 24 is not below spec.sync.interval, 24; use 0 to 23"),
    (
        {"spec.sync.interval": 1, "spec.sync.overlap": 2},
        "spec.sync.overlap: 2 is not below spec.sync.interval, 1; use 0",
    ),
    (
        {"spec.sync.maxStalenessSteps": 23},
        (
            "spec.sync.maxStalenessSteps: 23 is below spec.sync.interval, 24, "
            "so every learner would pause for good; use at least 24"
        ),
    ),
    (
        {"spec.regions.1.name": "us-east"},
        "spec.regions[1].name: us-east is also the name of spec.regions[0]; use one that is unique in the job",
    ),
    (
        {"spec.regions.0.pools.1.name": "new"},
        (
            "spec.regions[0].pools[1].name: new is also the name of "
            "spec.regions[0].pools[0]; use one that is unique in region us-east"
        ),
    ),
    (
        {"spec.regions": [{"name": "here", "pools": [{"name": "cpu", "learners": 0}]}]},
        "spec.regions: have 0 learners in all; use at least 1",
    ),
    ({"spec.regions.0.pools.0.learners": 9_999}, "spec.regions: have 10001 learners in all; use at most 10000"),
    (
        {"spec.regions.0.pools.0.minimumLearners": 3},
        f"{LEARNERS_POOL}.minimumLearners: 3 is above learners, 2; use 0 to 2 or leave it out",
    ),
    (
        {"spec.regions.1.pools.0.learners": 0, "spec.regions.1.pools.0.minimumLearners": 1},
        "spec.regions[1].pools[0].minimumLearners: 1 is above learners, 0; use 0 or leave it out",
    ),
    (
        {"spec.failurePolicy.minimumLearners": 2},
        (
            "spec.failurePolicy.minimumLearners: 2 has no effect without spec.failurePolicy.maxRestartsPerLearner: "
            "no learner is ever given up; give both or leave it out"
        ),
    ),
    (
        {"spec.failurePolicy": {"minimumLearners": 5, "maxRestartsPerLearner": 1}},
        "spec.failurePolicy.minimumLearners: 5 is above the 4 learners of spec.regions; use 0 to 4",
    ),
    (
        {"spec.training.evaluation.everyTokens": 100_001},
        (
            "spec.training.evaluation.everyTokens: 100001 is above "
            "spec.training.tokens, 100000; use 1 to 100000 or leave it out"
        ),
    ),
    (
        {"spec.training.tokens": 2047},
        "spec.training.tokens: 2047 is below one inner step, 16 sequences of 128 tokens; use at least 2048",
    ),
    (
        {"spec.regions.1.pools.0.batchSize": 1024},
        "spec.training.tokens: 100000 is below one inner step, 1024 sequences of 128 tokens; use at least 131072",
    ),
    (
        {"spec.regions.0.pools.0.nodesPerLearner": 2},
        f"{LEARNERS_POOL}.nodesPerLearner: 2 is not supported yet: a learner is one pod; use 1 or leave it out",
    ),
    (
        {"spec.data": {"tokens": {"path": "corpus.tokens"}}},
        "spec.model.builtin.vocabularySize: is missing; with spec.data.tokens give the number of token ids",
    ),
    (
        {"spec.data": {"entrypoint": "mine.corpus:source"}},
        "spec.model.builtin.vocabularySize: is missing; with spec.data.entrypoint give the number of token ids",
    ),
    (
        {"spec.model.builtin.vocabularySize": 256},
        (
            "spec.model.builtin.vocabularySize: 256 is below the 257 ids of "
            "spec.data.text (256 bytes and an end of document); use at least 257 or leave it out"
        ),
    ),
    (
        {"spec.regions.1.cluster": {"kubeconfigSecret": {"name": "west"}}},
        (
            "spec.syncer.expose.type: ClusterIP cannot "
            "be reached from the other cluster of spec.regions[1]; use NodePort, LoadBalancer or External"
        ),
    ),
]
