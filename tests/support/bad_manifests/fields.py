"""Fields that are wrong by themselves: missing, unknown, of another type, out of range."""

from tests.support.bad_manifests.bad import LEARNERS_POOL, SAME, Bad
from tests.support.job_manifests import REMOVED

_LABEL = "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'"
FIELD = "is not a field here; "
POD = f"{LEARNERS_POOL}.podTemplate.spec"
IMAGE = "an image such as registry.example.com/team/trainer:1.0, at most 1024 characters"
CASES: list[Bad] = [
    # Top level.
    Bad({"apiVersion": "v1"}, 'apiVersion: "v1" is not known; use diloco.dev/v1alpha1'),
    Bad({"apiVersion": REMOVED}, "apiVersion: is missing; use diloco.dev/v1alpha1"),
    Bad({"kind": "DilocoJob"}, 'kind: "DilocoJob" is not known; use DiLoCoJob'),
    Bad({"metadata": REMOVED}, "metadata: is missing; use a mapping with name"),
    Bad(
        {"metadata.name": "Two_Regions"},
        'metadata.name: "Two_Regions" does not fit; '
        "use a name of lower-case letters, digits and inner hyphens, at most 63 characters",
    ),
    Bad(
        {"metadata.name": "a" * 64},
        f'metadata.name: "{"a" * 56}... is too long; '
        "use a name of lower-case letters, digits and inner hyphens, at most 63 characters",
        "may not be more than 63",
    ),
    Bad({"metadata.name": 7}, "metadata.name: 7 is not text; put it in quotes"),
    Bad({"spec": REMOVED}, "spec: is missing; use a mapping with model, training and regions", "Required value"),
    Bad(
        {"spec": []},
        "spec: a list of 0 is not a mapping; its fields are suspend, image, model, data, task, loop, training, sync, "
        "syncer, initFrom, regions, failurePolicy, activeDeadlineSeconds and ttlSecondsAfterFinished",
        "must be of type object",
    ),
    # Fields that are not there.
    Bad({"spec.sync.quorom": 1}, f"spec.sync.quorom: {FIELD}did you mean quorum?", "unknown field"),
    Bad(
        {"spec.sync.max_staleness_steps": 99},
        f"spec.sync.max_staleness_steps: {FIELD}did you mean maxStalenessSteps?",
        "unknown field",
    ),
    Bad(
        {"spec.sync.batch": 1},
        f"spec.sync.batch: {FIELD}use fragments, interval, overlap, quorum, grace, merge, "
        "tokenWeights, anchor, outerOptimizer, compression, errorFeedback, downlink, maxStalenessSteps, "
        "maxVersionLag, leaseSeconds or startupSeconds",
    ),
    Bad({"spec.quorum": 1}, f"spec.quorum: {FIELD}did you mean spec.sync.quorum?", "unknown field"),
    Bad(
        {"spec.nodeSelector": {}}, f"spec.nodeSelector: {FIELD}did you mean spec.syncer.podTemplate.spec.nodeSelector?"
    ),
    Bad(
        {"spec.regions.0.pools.0.learner": 1},
        f"{LEARNERS_POOL}.learner: {FIELD}did you mean learners?",
        "unknown field",
    ),
    Bad({"Spec": {}}, f"Spec: {FIELD}did you mean spec?"),
    Bad(
        {"spec.regions.0.pools.0.resources": {"limit": {"nvidia.com/gpu": 1}}},
        f"{LEARNERS_POOL}.resources.limit: {FIELD}did you mean limits?",
        "unknown field",
    ),
    Bad(
        {"spec.syncer.resources": {"limit": {"cpu": "2"}}},
        f"spec.syncer.resources.limit: {FIELD}did you mean limits?",
        "unknown field",
    ),
    Bad(
        {"spec.regions.0.pools.0.podTemplate": {"spec": {"nodeSelectr": {}}}},
        f"{POD}.nodeSelectr: {FIELD}did you mean nodeSelector?",
        "unknown field",
    ),
    Bad(
        {"spec.syncer.podTemplate": {"spec": {"hostNetwork": True}}},
        f"spec.syncer.podTemplate.spec.hostNetwork: {FIELD}use affinity, containers, dnsConfig, dnsPolicy, "
        "hostAliases, imagePullSecrets, initContainers, nodeSelector, priorityClassName, resourceClaims, "
        "runtimeClassName, schedulerName, schedulingGates, securityContext, serviceAccountName, tolerations, "
        "topologySpreadConstraints or volumes",
    ),
    Bad(
        {"spec.regions.0.pools.0.volumes": []},
        f"{LEARNERS_POOL}.volumes: {FIELD}did you mean {POD}.volumes?",
        "unknown field",
    ),
    # Missing and null.
    Bad({"spec.training": REMOVED}, "spec.training: is missing; use a mapping with tokens", "Required value"),
    Bad(
        {"spec.training": {}},
        "spec.training.tokens: is missing; use an integer from 1 to 1000000000000000",
        "Required value",
    ),
    Bad(
        {"spec.sync": None},
        "spec.sync: null is not a mapping; its fields are fragments, interval, overlap, quorum, "
        "grace, merge, tokenWeights, anchor, outerOptimizer, compression, errorFeedback, downlink, "
        "maxStalenessSteps, maxVersionLag, leaseSeconds and startupSeconds",
    ),
    Bad(
        {"spec.training.seed": None}, "spec.training.seed: null is not an integer; use an integer from 0 to 2147483647"
    ),
    # Wrong types.
    Bad(
        {"spec.training.tokens": "many"},
        'spec.training.tokens: "many" is not an integer; use an integer from 1 to 1000000000000000',
        "must be of type integer",
    ),
    Bad({"spec.training.tokens": "200"}, 'spec.training.tokens: "200" is not an integer; remove the quotes'),
    Bad(
        {"spec.training.tokens": 2.5},
        "spec.training.tokens: 2.5 is not an integer; use an integer from 1 to 1000000000000000",
        "must be of type integer",
    ),
    Bad(
        {"spec.training.tokens": True},
        "spec.training.tokens: true is not an integer; use an integer from 1 to 1000000000000000",
    ),
    Bad({"spec.suspend": "yes"}, 'spec.suspend: "yes" is not true or false', "must be of type boolean"),
    Bad({"spec.suspend": 1}, "spec.suspend: 1 is not true or false"),
    Bad({"spec.image": 1.5}, "spec.image: 1.5 is not text; put it in quotes", "must be of type string"),
    Bad(
        {"spec.regions.0.bandwidth": "500Mbps"},
        'spec.regions[0].bandwidth: "500Mbps" does not fit; use a rate such as 500Mbit/s or 62.5MB/s, at most 20 '
        "characters",
    ),
    Bad(
        {"spec.failurePolicy": {"lostPods": {"action": "Delete"}}},
        'spec.failurePolicy.lostPods.action: "Delete" is not known; use Replace or Wait',
        "Unsupported value",
    ),
    Bad(
        {"spec.failurePolicy": {"lostPods": {"afterSeconds": 5}}},
        "spec.failurePolicy.lostPods.afterSeconds: 5 is too small; use an integer from 10 to 86400",
        "greater than or equal to 10",
    ),
    Bad(
        {"spec.regions.0.connections": 65}, "spec.regions[0].connections: 65 is too large; use an integer from 1 to 64"
    ),
    Bad(
        {"spec.regions": {}},
        "spec.regions: a mapping is not a list; use a list of 1 to 64 items",
        "must be of type array",
    ),
    Bad(
        {"spec.regions.0": "us-east"},
        'spec.regions[0]: "us-east" is not a mapping; its fields are name, cluster, connections, bandwidth and pools',
    ),
    Bad(
        {"spec.regions.0.pools.0.podTemplate": {"spec": {"nodeSelector": {"gpu": 1}}}},
        f"{POD}.nodeSelector.gpu: 1 is not text; put it in quotes",
        "must be of type string",
    ),
    Bad(
        {"spec.regions.0.pools.0.podTemplate": {"spec": {"tolerations": {}}}},
        f"{POD}.tolerations: a mapping is not a list; use a list of 0 to 64 items",
    ),
    Bad(
        {"spec.regions.0.pools.0.env": [{"name": "A"}, {"name": "B"}, {"name": "A"}]},
        f"{LEARNERS_POOL}.env[2].name: A is there already; use each name once",
        "Duplicate value",
        at="spec.regions[0].pools[0].env[2]",
    ),
    Bad(
        {"spec.syncer.env": [{"value": "1"}]},
        "spec.syncer.env[0].name: is missing; use a name of printable characters other than =",
        "Required value",
    ),
    Bad({"spec.syncer.env": [{"name": 1}]}, "spec.syncer.env[0].name: 1 is not text; put it in quotes"),
    Bad(
        {"spec.syncer.resources": {"requests": {"cpu": "2 cores"}}},
        'spec.syncer.resources.requests.cpu: "2 cores" does not fit; '
        "use a quantity such as 500m or 16Gi, at most 64 characters",
        "should match",
    ),
    Bad(
        {"spec.syncer.resources": {"limits": {"cpu": 0.5}}},
        "spec.syncer.resources.limits.cpu: 0.5 is not text; put it in quotes",
    ),
    Bad(
        {"spec.sync.leaseSeconds": 0.5},
        "spec.sync.leaseSeconds: 0.5 is not an integer; use an integer from 1 to 3600",
        "must be of type integer",
    ),
    # Enumerations and forms.
    Bad(
        {"spec.model.builtin.preset": "huge"},
        'spec.model.builtin.preset: "huge" is not known; use pico, nano, micro, mini or gpt2',
        "Unsupported value",
    ),
    Bad(
        {"spec.sync.merge": "Average"}, 'spec.sync.merge: "Average" is not known; use RDA or Mean', "Unsupported value"
    ),
    Bad({"spec.sync.compression": None}, "spec.sync.compression: null is not known; use None, BF16, Int8 or Int4"),
    Bad(
        {"spec.training.optimizer.type": "muon"},
        'spec.training.optimizer.type: "muon" is not known; use AdamW or Muon',
        "Unsupported value",
    ),
    Bad({"spec.sync.anchor": ["Received"]}, "spec.sync.anchor: a list of 1 is not known; use Received or Current"),
    Bad(
        {"spec.model": {"entrypoint": "package.module"}},
        'spec.model.entrypoint: "package.module" does not fit; use package.module:factory, at most 253 characters',
        "should match",
    ),
    Bad(
        {"spec.syncer.storage.size": "10 GB"},
        'spec.syncer.storage.size: "10 GB" does not fit; use a quantity of bytes such as 10Gi, at most 20 characters',
        "should match",
    ),
    *(
        Bad({"spec.image": image}, f'spec.image: "{image}" does not fit; use {IMAGE}', "should match")
        for image in ("", "example.com/Trainer:1", "https://example.com/trainer", "trainer:v 1")
    ),
    Bad(
        {"spec.regions.0.pools.0.podTemplate": {"metadata": {"labels": {"team": "a b"}}}},
        f'{LEARNERS_POOL}.podTemplate.metadata.labels.team: "a b" does not fit; use letters, digits, inner hyphens, '
        "underscores and dots, at most 63 characters",
        "should match",
    ),
    Bad(
        {"spec.syncer.podTemplate": {"spec": {"dnsPolicy": "clusterFirst"}}},
        'spec.syncer.podTemplate.spec.dnsPolicy: "clusterFirst" is not known; use ClusterFirst, '
        "ClusterFirstWithHostNet, Default or None",
        "Unsupported value",
    ),
    # Ranges.
    Bad(
        {"spec.sync.fragments": 0},
        "spec.sync.fragments: 0 is too small; use an integer from 1 to 4096",
        "greater than or equal to 1",
    ),
    Bad(
        {"spec.sync.fragments": 4097},
        "spec.sync.fragments: 4097 is too large; use an integer from 1 to 4096",
        "less than or equal to 4096",
    ),
    Bad(
        {"spec.sync.grace.safety": 1},
        "spec.sync.grace.safety: 1 is too large; use a number of at least 0 and below 1",
        "should be less than 1",
    ),
    Bad(
        {"spec.sync.outerOptimizer": {"learningRate": 0, "momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate: 0 is too small; use a number above 0 and at most 10",
        "should be greater than 0",
    ),
    Bad(
        {"spec.sync.outerOptimizer": {"momentum": 0.9}},
        "spec.sync.outerOptimizer.learningRate: is missing; use a number above 0 and at most 10",
        "Required value",
    ),
    Bad(
        {"spec.data.holdoutFraction": 0.7},
        "spec.data.holdoutFraction: 0.7 is too large; use a number above 0 and at most 0.5",
    ),
    Bad(
        {"spec.training.optimizer.learningRate": float("inf")},
        "spec.training.optimizer.learningRate: Infinity is not finite; use a number above 0 and at most 10",
    ),
    Bad(
        {"spec.activeDeadlineSeconds": 0},
        "spec.activeDeadlineSeconds: 0 is too small; use an integer from 1 to 2147483647",
        "greater than or equal to 1",
    ),
    Bad(
        {"spec.regions": []},
        "spec.regions: a list of 0 is too short; use a list of 1 to 64 items",
        "should have at least 1 items",
    ),
    Bad(
        {"spec.regions.1.pools": []},
        "spec.regions[1].pools: a list of 0 is too short; use a list of 1 to 64 items",
        "should have at least 1 items",
    ),
    # Names, lengths, and a word or a number.
    Bad(
        {"metadata.name": "two.regions"},
        (
            'metadata.name: "two.regions" does not fit; use a name of lower-case letters, digits and inner '
            "hyphens, at most 63 characters"
        ),
        _LABEL,
    ),
    Bad(
        {"spec.image": "x" * 1025},
        (f'spec.image: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... is too long; use {IMAGE}'),
        "may not be more than 1024",
    ),
    Bad(
        {"spec.regions.0.name": "US_East"},
        (
            'spec.regions[0].name: "US_East" does not fit; use a name of lower-case letters, digits and '
            "inner hyphens, at most 63 characters"
        ),
        _LABEL,
    ),
    Bad(
        {"spec.regions.0.pools.0.env": [{"name": "A"}] * 257},
        "spec.regions[0].pools[0].env: a list of 257 is too long; use a list of 0 to 256 items",
        "must have at most 256 items",
    ),
    Bad(
        {"spec.regions.0.pools.0.podTemplate": {"spec": {"nodeSelector": {f"label-{n}": "" for n in range(65)}}}},
        (
            "spec.regions[0].pools[0].podTemplate.spec.nodeSelector: a mapping is too long; use a mapping of "
            "0 to 64 keys"
        ),
        "must have at most 64 items",
    ),
    Bad(
        {"spec.training.optimizer": {"type": "Muon", "muon": {"momentum": 1}}},
        "spec.training.optimizer.muon.momentum: 1 is too large; use a number of at least 0 and below 1",
        "should be less than 1",
    ),
    Bad(
        {"spec.regions.1.pools.0.batchSize": "auto"},
        'spec.regions[1].pools[0].batchSize: "auto" is not allowed; use Auto or an integer from 1 to 65536',
        "auto is not allowed; use Auto or an integer from 1 to 65536",
    ),
    Bad(
        {"spec.regions.1.pools.0.batchSize": 0},
        "spec.regions[1].pools[0].batchSize: 0 is not allowed; use Auto or an integer from 1 to 65536",
        SAME,
    ),
    Bad(
        {"spec.regions.1.pools.0.batchSize": 65_537},
        "spec.regions[1].pools[0].batchSize: 65537 is not allowed; use Auto or an integer from 1 to 65536",
        SAME,
    ),
    Bad(
        {"spec.sync.overlap": "auto"},
        'spec.sync.overlap: "auto" is not allowed; use Auto or an integer from 0 to 1000000',
        "auto is not allowed; use Auto or an integer from 0 to 1000000",
    ),
    Bad(
        {"spec.sync.overlap": -1},
        "spec.sync.overlap: -1 is not allowed; use Auto or an integer from 0 to 1000000",
        SAME,
    ),
    Bad(
        {"spec.sync.overlap": 1_000_001},
        "spec.sync.overlap: 1000001 is not allowed; use Auto or an integer from 0 to 1000000",
        SAME,
    ),
    # Learners of several processes.
    Bad(
        {"spec.regions.0.pools.0.processesPerNode": 65},
        f"{LEARNERS_POOL}.processesPerNode: 65 is too large; use an integer from 1 to 64",
        "less than or equal to 64",
    ),
    Bad(
        {"spec.regions.0.pools.0.nodesPerLearner": 0},
        f"{LEARNERS_POOL}.nodesPerLearner: 0 is too small; use an integer from 1 to 256",
        "greater than or equal to 1",
    ),
    Bad(
        {"spec.regions.0.pools.0.parallelism": "TP"},
        f'{LEARNERS_POOL}.parallelism: "TP" is not known; use FSDP or DDP',
        "Unsupported value",
    ),
    Bad(
        {"spec.regions.0.pools.0.topologyKey": "rack row"},
        f'{LEARNERS_POOL}.topologyKey: "rack row" does not fit; use a key such as team or example.com/team, at most '
        "317 characters",
        "should match",
    ),
    Bad(
        {"spec.model.parallelize": "mine"},
        'spec.model.parallelize: "mine" does not fit; use package.module:factory, at most 253 characters',
        "should match",
    ),
]
