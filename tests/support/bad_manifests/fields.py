"""Fields that are wrong by themselves: missing, unknown, of another type, out of range."""

from tests.support.bad_manifests.bad import LEARNERS_POOL, SAME, Bad, wrong
from tests.support.job_manifests import REMOVED

_LABEL = "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'"
FIELD = "is not a field here; "
POD = f"{LEARNERS_POOL}.podTemplate.spec"
NAME = "use a name of lower-case letters, digits and inner hyphens, at most 63 characters"
TOKENS = "use an integer from 1 to 1000000000000000"
IMAGE = "an image such as registry.example.com/team/trainer:1.0, at most 1024 characters"
CASES: list[Bad] = [
    # Top level.
    wrong("apiVersion", "v1", '"v1" is not known; use diloco.dev/v1alpha1'),
    wrong("apiVersion", REMOVED, "is missing; use diloco.dev/v1alpha1"),
    wrong("kind", "DilocoJob", '"DilocoJob" is not known; use DiLoCoJob'),
    wrong("metadata", REMOVED, "is missing; use a mapping with name"),
    wrong("metadata.name", "Two_Regions", f'"Two_Regions" does not fit; {NAME}'),
    wrong(
        "metadata.name",
        "a" * 64,
        f'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa... is too long; {NAME}',
        "may not be more than 63",
    ),
    wrong("metadata.name", 7, "7 is not text; put it in quotes"),
    wrong("spec", REMOVED, "is missing; use a mapping with model, training and regions", "Required value"),
    wrong(
        "spec",
        [],
        "a list of 0 is not a mapping; its fields are suspend, image, model, data, task, loop, training, sync, "
        "syncer, initFrom, regions, failurePolicy, activeDeadlineSeconds and ttlSecondsAfterFinished",
        "must be of type object",
    ),
    # Fields that are not there.
    wrong("spec.sync.quorom", 1, f"{FIELD}did you mean quorum?", "unknown field"),
    wrong("spec.sync.max_staleness_steps", 99, f"{FIELD}did you mean maxStalenessSteps?", "unknown field"),
    wrong(
        "spec.sync.batch",
        1,
        f"{FIELD}use fragments, interval, overlap, quorum, grace, merge, tokenWeights, anchor, outerOptimizer, "
        "compression, errorFeedback, downlink, maxStalenessSteps, maxVersionLag, leaseSeconds or startupSeconds",
    ),
    wrong("spec.quorum", 1, f"{FIELD}did you mean spec.sync.quorum?", "unknown field"),
    wrong("spec.nodeSelector", {}, f"{FIELD}did you mean spec.syncer.podTemplate.spec.nodeSelector?"),
    wrong("spec.regions.0.pools.0.learner", 1, f"{FIELD}did you mean learners?", "unknown field"),
    wrong("Spec", {}, f"{FIELD}did you mean spec?"),
    wrong(
        "spec.regions.0.pools.0.resources.limit", {"nvidia.com/gpu": 1}, f"{FIELD}did you mean limits?", "unknown field"
    ),
    wrong("spec.syncer.resources.limit", {"cpu": "2"}, f"{FIELD}did you mean limits?", "unknown field"),
    wrong(
        "spec.regions.0.pools.0.podTemplate.spec.nodeSelectr", {}, f"{FIELD}did you mean nodeSelector?", "unknown field"
    ),
    Bad(
        {"spec.syncer.podTemplate": {"spec": {"hostNetwork": True}}},
        f"spec.syncer.podTemplate.spec.hostNetwork: {FIELD}use affinity, containers, dnsConfig, dnsPolicy, "
        "hostAliases, imagePullSecrets, initContainers, nodeSelector, priorityClassName, resourceClaims, "
        "runtimeClassName, schedulerName, schedulingGates, securityContext, serviceAccountName, tolerations, "
        "topologySpreadConstraints or volumes",
    ),
    wrong(
        "spec.regions.0.pools.0.volumes",
        [],
        f"{FIELD}did you mean spec.regions[0].pools[0].podTemplate.spec.volumes?",
        "unknown field",
    ),
    # Missing and null.
    wrong("spec.training", REMOVED, "is missing; use a mapping with tokens", "Required value"),
    Bad(
        {"spec.training": {}},
        "spec.training.tokens: is missing; use an integer from 1 to 1000000000000000",
        "Required value",
    ),
    wrong(
        "spec.sync",
        None,
        "null is not a mapping; its fields are fragments, interval, overlap, quorum, grace, merge, tokenWeights, "
        "anchor, outerOptimizer, compression, errorFeedback, downlink, maxStalenessSteps, maxVersionLag, "
        "leaseSeconds and startupSeconds",
    ),
    wrong("spec.training.seed", None, "null is not an integer; use an integer from 0 to 2147483647"),
    # Wrong types.
    wrong("spec.training.tokens", "many", f'"many" is not an integer; {TOKENS}', "must be of type integer"),
    wrong("spec.training.tokens", "200", '"200" is not an integer; remove the quotes'),
    wrong("spec.training.tokens", 2.5, f"2.5 is not an integer; {TOKENS}", "must be of type integer"),
    Bad(
        {"spec.training.tokens": True},
        "spec.training.tokens: true is not an integer; use an integer from 1 to 1000000000000000",
    ),
    wrong("spec.suspend", "yes", '"yes" is not true or false', "must be of type boolean"),
    wrong("spec.suspend", 1, "1 is not true or false"),
    wrong("spec.image", 1.5, "1.5 is not text; put it in quotes", "must be of type string"),
    wrong(
        "spec.regions.0.bandwidth",
        "500Mbps",
        '"500Mbps" does not fit; use a rate such as 500Mbit/s or 62.5MB/s, at most 20 characters',
    ),
    wrong(
        "spec.failurePolicy.lostPods.action",
        "Delete",
        '"Delete" is not known; use Replace or Wait',
        "Unsupported value",
    ),
    wrong(
        "spec.failurePolicy.lostPods.afterSeconds",
        5,
        "5 is too small; use an integer from 10 to 86400",
        "greater than or equal to 10",
    ),
    wrong("spec.regions.0.connections", 65, "65 is too large; use an integer from 1 to 64"),
    wrong("spec.regions", {}, "a mapping is not a list; use a list of 1 to 64 items", "must be of type array"),
    wrong(
        "spec.regions.0",
        "us-east",
        '"us-east" is not a mapping; its fields are name, cluster, connections, bandwidth and pools',
    ),
    wrong(
        "spec.regions.0.pools.0.podTemplate.spec.nodeSelector.gpu",
        1,
        "1 is not text; put it in quotes",
        "must be of type string",
    ),
    wrong(
        "spec.regions.0.pools.0.podTemplate.spec.tolerations",
        {},
        "a mapping is not a list; use a list of 0 to 64 items",
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
    wrong(
        "spec.syncer.resources.requests.cpu",
        "2 cores",
        '"2 cores" does not fit; use a quantity such as 500m or 16Gi, at most 64 characters',
        "should match",
    ),
    wrong("spec.syncer.resources.limits.cpu", 0.5, "0.5 is not text; put it in quotes"),
    wrong(
        "spec.sync.leaseSeconds", 0.5, "0.5 is not an integer; use an integer from 1 to 3600", "must be of type integer"
    ),
    # Enumerations and forms.
    wrong(
        "spec.model.builtin.preset",
        "huge",
        '"huge" is not known; use pico, nano, micro, mini or gpt2',
        "Unsupported value",
    ),
    wrong("spec.sync.merge", "Average", '"Average" is not known; use RDA or Mean', "Unsupported value"),
    wrong("spec.sync.compression", None, "null is not known; use None, BF16, Int8 or Int4"),
    wrong("spec.training.optimizer.type", "muon", '"muon" is not known; use AdamW or Muon', "Unsupported value"),
    wrong("spec.sync.anchor", ["Received"], "a list of 1 is not known; use Received or Current"),
    Bad(
        {"spec.model": {"entrypoint": "package.module"}},
        'spec.model.entrypoint: "package.module" does not fit; use package.module:factory, at most 253 characters',
        "should match",
    ),
    wrong(
        "spec.syncer.storage.size",
        "10 GB",
        '"10 GB" does not fit; use a quantity of bytes such as 10Gi, at most 20 characters',
        "should match",
    ),
    *(
        Bad({"spec.image": image}, f'spec.image: "{image}" does not fit; use {IMAGE}', "should match")
        for image in ("", "example.com/Trainer:1", "https://example.com/trainer", "trainer:v 1")
    ),
    wrong(
        "spec.regions.0.pools.0.podTemplate.metadata.labels.team",
        "a b",
        '"a b" does not fit; use letters, digits, inner hyphens, underscores and dots, at most 63 characters',
        "should match",
    ),
    wrong(
        "spec.syncer.podTemplate.spec.dnsPolicy",
        "clusterFirst",
        '"clusterFirst" is not known; use ClusterFirst, ClusterFirstWithHostNet, Default or None',
        "Unsupported value",
    ),
    # Ranges.
    wrong("spec.sync.fragments", 0, "0 is too small; use an integer from 1 to 4096", "greater than or equal to 1"),
    wrong(
        "spec.sync.fragments", 4097, "4097 is too large; use an integer from 1 to 4096", "less than or equal to 4096"
    ),
    wrong(
        "spec.sync.grace.safety", 1, "1 is too large; use a number of at least 0 and below 1", "should be less than 1"
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
    wrong("spec.data.holdoutFraction", 0.7, "0.7 is too large; use a number above 0 and at most 0.5"),
    wrong(
        "spec.training.optimizer.learningRate",
        float("inf"),
        "Infinity is not finite; use a number above 0 and at most 10",
    ),
    wrong(
        "spec.activeDeadlineSeconds",
        0,
        "0 is too small; use an integer from 1 to 2147483647",
        "greater than or equal to 1",
    ),
    wrong("spec.regions", [], "a list of 0 is too short; use a list of 1 to 64 items", "should have at least 1 items"),
    wrong(
        "spec.regions.1.pools",
        [],
        "a list of 0 is too short; use a list of 1 to 64 items",
        "should have at least 1 items",
    ),
    # Names, lengths, and a word or a number.
    wrong(
        "metadata.name",
        "two.regions",
        f'"two.regions" does not fit; {NAME}',
        "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'",
    ),
    wrong(
        "spec.image",
        "x" * 1025,
        f'"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... is too long; use {IMAGE}',
        "may not be more than 1024",
    ),
    wrong(
        "spec.regions.0.name",
        "US_East",
        f'"US_East" does not fit; {NAME}',
        "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'",
    ),
    wrong(
        "spec.regions.0.pools.0.env",
        [{"name": "A"}] * 257,
        "a list of 257 is too long; use a list of 0 to 256 items",
        "must have at most 256 items",
    ),
    wrong(
        "spec.regions.0.pools.0.podTemplate.spec.nodeSelector",
        {f"label-{n}": "" for n in range(65)},
        "a mapping is too long; use a mapping of 0 to 64 keys",
        "must have at most 64 items",
    ),
    Bad(
        {"spec.training.optimizer": {"type": "Muon", "muon": {"momentum": 1}}},
        "spec.training.optimizer.muon.momentum: 1 is too large; use a number of at least 0 and below 1",
        "should be less than 1",
    ),
    wrong(
        "spec.regions.1.pools.0.batchSize",
        "auto",
        '"auto" is not allowed; use Auto or an integer from 1 to 65536',
        "auto is not allowed; use Auto or an integer from 1 to 65536",
    ),
    wrong("spec.regions.1.pools.0.batchSize", 0, "0 is not allowed; use Auto or an integer from 1 to 65536", SAME),
    wrong(
        "spec.regions.1.pools.0.batchSize", 65_537, "65537 is not allowed; use Auto or an integer from 1 to 65536", SAME
    ),
    wrong(
        "spec.sync.overlap",
        "auto",
        '"auto" is not allowed; use Auto or an integer from 0 to 1000000',
        "auto is not allowed; use Auto or an integer from 0 to 1000000",
    ),
    wrong("spec.sync.overlap", -1, "-1 is not allowed; use Auto or an integer from 0 to 1000000", SAME),
    wrong("spec.sync.overlap", 1_000_001, "1000001 is not allowed; use Auto or an integer from 0 to 1000000", SAME),
    # Learners of several processes.
    wrong(
        "spec.regions.0.pools.0.processesPerNode",
        65,
        "65 is too large; use an integer from 1 to 64",
        "less than or equal to 64",
    ),
    wrong(
        "spec.regions.0.pools.0.nodesPerLearner",
        0,
        "0 is too small; use an integer from 1 to 256",
        "greater than or equal to 1",
    ),
    wrong("spec.regions.0.pools.0.parallelism", "TP", '"TP" is not known; use FSDP or DDP', "Unsupported value"),
    wrong(
        "spec.regions.0.pools.0.topologyKey",
        "rack row",
        '"rack row" does not fit; use a key such as team or example.com/team, at most 317 characters',
        "should match",
    ),
    wrong(
        "spec.model.parallelize",
        "mine",
        '"mine" does not fit; use package.module:factory, at most 253 characters',
        "should match",
    ),
]
