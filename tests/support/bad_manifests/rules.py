"""Fields that are right by themselves and not together."""

from tests.support.bad_manifests.bad import LEARNERS_POOL, SAME, Bad, wrong
from tests.support.job_manifests import REMOVED

ONE_MODEL = "needs exactly one of builtin, huggingface and entrypoint"
ONE_DATA = "needs exactly one of text, tokens, documents, mixture and entrypoint"
ADAPTED = "needs huggingface with weights: true; add that or remove it"
DECIDED = "whose code decides it; remove one of them"
NO_VOCABULARY = "is missing; without spec.data.text give the number of token ids"
NO_HOST = "is missing; give the address at which learners outside the cluster reach the syncer"
CASES: list[Bad] = [
    # One of several.
    wrong("spec.model", {}, f"{ONE_MODEL}; has none", ONE_MODEL),
    Bad({"spec.model.entrypoint": "a.b:c"}, f"spec.model: {ONE_MODEL}; has builtin and entrypoint", ONE_MODEL),
    Bad({"spec.model.adapter.targets": ["q_proj"]}, f"spec.model.adapter: {ADAPTED}", ADAPTED),
    Bad(
        {"spec.model": {"huggingface": {"path": "m"}, "adapter": {"targets": ["q_proj"]}}},
        f"spec.model.adapter: {ADAPTED}",
        SAME,
    ),
    wrong("spec.data", {}, f"{ONE_DATA}; has none", ONE_DATA),
    Bad({"spec.data.tokens.path": "corpus.tokens"}, f"spec.data: {ONE_DATA}; has text and tokens", ONE_DATA),
    Bad(
        {
            "spec.data": {"mixture": [{"weight": 1, "text": {}}, {"weight": 2}]},
            "spec.model.builtin.vocabularySize": 257,
        },
        "spec.data.mixture[1]: needs exactly one of text, tokens and documents; has none",
        "needs exactly one of text, tokens and documents",
    ),
    Bad(
        {"spec.model.arguments.layers": 3},
        "spec.model.arguments: has no use without entrypoint; remove it or use entrypoint",
        SAME,
    ),
    Bad(
        {"spec.model": {"entrypoint": "a.b:c", "arguments": {"layers": [1, {"width": None}]}}},
        "spec.model.arguments.layers[1].width: null cannot be passed on; leave it out",
    ),
    Bad(
        {"spec.data.arguments.path": "x"},
        "spec.data.arguments: has no use without entrypoint; remove it or use entrypoint",
        "has no use without entrypoint; remove it or use",
    ),
    Bad(
        {"spec.task": {"entrypoint": "a.b:c"}},
        f"spec.data.text: has no use with spec.task or spec.loop, {DECIDED}",
        SAME,
    ),
    Bad(
        {
            "spec.task": {"entrypoint": "a.b:c", "arguments": {"path": None}},
            "spec.data": REMOVED,
            "spec.model": {"entrypoint": "a.b:c"},
        },
        "spec.task.arguments.path: null cannot be passed on; leave it out",
    ),
    Bad(
        {
            "spec.task": {"entrypoint": "a.b:c"},
            "spec.data": {"documentMask": True},
            "spec.model": {"entrypoint": "a.b:c"},
        },
        f"spec.data.documentMask: has no use with spec.task or spec.loop, {DECIDED}",
        SAME,
    ),
    wrong("spec.training.sequenceLength", 1, "1 has a use only with spec.task or spec.loop; use at least 2", SAME),
    Bad(
        {"spec.loop": {"entrypoint": "a.b:c"}},
        f"spec.data.text: has no use with spec.task or spec.loop, {DECIDED}",
        SAME,
    ),
    *(
        Bad(
            {"spec.loop": {"entrypoint": "a.b:c"}, "spec.data": given, "spec.model": {"entrypoint": "a.b:c"}} | change,
            f"spec.{field}: has no use with spec.loop, {DECIDED}",
            SAME,
        )
        for field, change, given in (
            ("task", {"spec.task": {"entrypoint": "a.b:c"}}, {}),
            ("training.microBatchSize", {"spec.training.microBatchSize": 2}, {}),
            ("training.precision", {"spec.training.precision": "BF16"}, {}),
            ("data.holdoutFraction", {}, {"holdoutFraction": 0.1}),
            ("training.optimizer", {"spec.training.optimizer.learningRate": 0.02}, {}),
            ("training.evaluation.sequences", {"spec.training.evaluation.sequences": 4}, {}),
        )
    ),
    Bad(
        {
            "spec.loop": {"entrypoint": "a.b:c"},
            "spec.data": {},
            "spec.model": {"entrypoint": "a.b:c"},
            f"{LEARNERS_POOL.replace('[', '.').replace(']', '')}.batchSize": "Auto",
        },
        f"{LEARNERS_POOL}.batchSize: Auto has no use with spec.loop, whose code decides it; use a number",
    ),
    # What cannot be together.
    Bad(
        {"spec.training.optimizer.muon.learningRate": 0.02},
        "spec.training.optimizer.muon: has no use without type Muon; remove it or use type Muon",
        SAME,
    ),
    Bad(
        {"spec.training.optimizer": {"groups": [{"match": ["*.up.*"], "optimizer": "AdamW"}]}},
        "spec.training.optimizer.groups[0].optimizer: has no use without type Muon; remove it or use type Muon",
        SAME,
        at="spec.training.optimizer.groups",
    ),
    Bad(
        {"spec.training.optimizer": {"groups": [{"match": ["*.up.*", "router.*"]}]}},
        (
            "spec.training.optimizer.groups[0].match[1]: router.* matches no parameter of the built-in model, such as "
            "blocks.0.attention.query.weight; remove it"
        ),
    ),
    wrong("spec.sync.quorum", 5, "5 is above the learners of spec.regions, 4; use at most as many", SAME),
    Bad(
        {"spec.regions": [{"name": "here", "pools": [{"name": "cpu"}]}], "spec.sync.quorum": 2},
        "spec.sync.quorum: 2 is above the learners of spec.regions, 1; use at most as many",
        SAME,
    ),
    wrong("spec.sync.overlap", 24, "24 is not below spec.sync.interval, 24; use a smaller one", SAME),
    Bad(
        {"spec.sync.interval": 1, "spec.sync.overlap": 2},
        "spec.sync.overlap: 2 is not below spec.sync.interval, 1; use a smaller one",
        SAME,
    ),
    wrong(
        "spec.sync.maxStalenessSteps",
        23,
        "23 is below spec.sync.interval, 24, so every learner would pause for good; use at least as many",
        SAME,
    ),
    wrong(
        "spec.regions.1.name",
        "us-east",
        "us-east is there already; use each name once",
        "Duplicate value",
        at="spec.regions[1]",
    ),
    wrong(
        "spec.regions.0.pools.1.name",
        "new",
        "new is there already; use each name once",
        "Duplicate value",
        at="spec.regions[0].pools[1]",
    ),
    wrong(
        "spec.regions",
        [{"name": "here", "pools": [{"name": "cpu", "learners": 0}]}],
        "have 0 learners in all; use 1 to 10000",
        SAME,
    ),
    Bad({"spec.regions.0.pools.0.learners": 9_999}, "spec.regions: have 10001 learners in all; use 1 to 10000", SAME),
    Bad(
        {"spec.regions.0.pools.0.learners": 5_000, "spec.regions.0.pools.0.nodesPerLearner": 2},
        "spec.regions: have 10002 nodes of learners in all; use at most 10000",
        SAME,
    ),
    wrong(
        "spec.regions.0.pools.0.minimumLearners",
        3,
        "3 is above learners less excludedIndices, 2; use at most as many, or leave it out",
        SAME,
    ),
    Bad(
        {"spec.regions.1.pools.0.learners": 0, "spec.regions.1.pools.0.minimumLearners": 1},
        "spec.regions[1].pools[0].minimumLearners: 1 is above learners less excludedIndices, 0; "
        "use at most as many, or leave it out",
    ),
    wrong(
        "spec.failurePolicy.minimumLearners",
        2,
        "2 has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; give both "
        "or leave it out",
        "has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; give both",
    ),
    Bad(
        {"spec.failurePolicy": {"minimumLearners": 5, "maxRestartsPerLearner": 1}},
        "spec.failurePolicy.minimumLearners: 5 is above the learners of spec.regions, 4; use at most as many",
        SAME,
    ),
    wrong(
        "spec.training.evaluation.everyTokens",
        100_001,
        "100001 is above spec.training.tokens, 100000; use at most as many, or leave it out",
        SAME,
    ),
    wrong("spec.training.tokens", 2047, "2047 is below the tokens of one inner step; use at least 2048", SAME),
    Bad(
        {"spec.regions.1.pools.0.batchSize": 1024},
        "spec.training.tokens: 100000 is below the tokens of one inner step; use at least 131072",
        SAME,
    ),
    Bad(
        {"spec.data": {"tokens": {"path": "corpus.tokens"}}},
        f"spec.model.builtin.vocabularySize: {NO_VOCABULARY}",
        SAME,
    ),
    Bad(
        {"spec.data": {"entrypoint": "mine.corpus:source"}}, f"spec.model.builtin.vocabularySize: {NO_VOCABULARY}", SAME
    ),
    wrong(
        "spec.model.builtin.vocabularySize",
        256,
        "256 is below the 257 ids of spec.data.text (256 bytes and an end of document); use at least 257 or leave "
        "it out",
        "256 is below the 257 ids of spec.data.text (256 bytes and an end of document); use at least 257",
    ),
    Bad(
        {"spec.regions.1.cluster": {"kubeconfigSecretRef": {"name": "west"}}},
        "spec.syncer.expose.type: ClusterIP cannot be reached from other clusters, and a region is in one; "
        "use NodePort, LoadBalancer or External",
        ("ClusterIP cannot be reached from other clusters, and a region is in one; use NodePort, LoadBalancer or"),
    ),
    # Backups, the syncer's address, and pools.
    wrong(
        "spec.regions.0.pools.1.fallbackAfterSeconds",
        60,
        "has no effect, as no pool of the region follows; remove it, or add a pool after it",
        SAME,
        at="spec.regions[0].pools",
    ),
    Bad(
        {"spec.syncer.backup": {"url": "gs://kept/mine", "endpoint": "https://store.example.com"}},
        "spec.syncer.backup.endpoint: has a use only with a url that begins with s3://; remove it",
        SAME,
    ),
    wrong(
        "spec.syncer.backup.url",
        "s3://kept/model.safetensors",
        "s3://kept/model.safetensors names a file; use a folder",
        "names a file; use a folder",
    ),
    Bad(
        {"spec.initFrom": {"url": "/kept", "endpoint": "https://store.example.com"}},
        "spec.initFrom.endpoint: has a use only with a url that begins with s3://; remove it",
        SAME,
    ),
    Bad(
        {"spec.initFrom": {"url": "/kept/model.safetensors"}},
        "spec.initFrom.type: Resume needs a folder of backups; use Weights with an exported model",
        SAME,
    ),
    Bad(
        {"spec.initFrom": {"url": "/kept/model.safetensors", "type": "Weights", "backup": "a"}},
        "spec.initFrom.backup: has no use with a url of one exported model; remove it",
        SAME,
    ),
    Bad(
        {"spec.syncer.expose": {"type": "LoadBalancer", "host": "a.example"}},
        "spec.syncer.expose.host: has no use without type NodePort or External; remove it or use one of them",
        SAME,
    ),
    Bad(
        {"spec.syncer.expose": {"type": "External", "port": 443}},
        (
            "spec.syncer.expose.host: is missing; give the address at which learners outside the cluster "
            "reach the syncer"
        ),
        SAME,
    ),
    Bad(
        {"spec.syncer.expose": {"type": "NodePort", "host": "a.example", "port": 443}},
        "spec.syncer.expose.port: has no use without type External; remove it or use type External",
        SAME,
    ),
    Bad(
        {"spec.syncer.expose": {"type": "External", "host": "a.example"}},
        "spec.syncer.expose.port: is missing; with type External give the port of that address",
        SAME,
    ),
    Bad(
        {
            "spec.regions.1.cluster": {"kubeconfigSecretRef": {"name": "west"}},
            "spec.syncer.expose": {"type": "NodePort"},
        },
        (
            "spec.syncer.expose.host: is missing; give the address at which learners outside the cluster "
            "reach the syncer"
        ),
        SAME,
    ),
    Bad(
        {"spec.regions.0.pools.0.excludedIndices": [1, 2]},
        "spec.regions[0].pools[0].excludedIndices[1]: 2 is not below learners, 2; use smaller ones",
        "names an index that is not below learners, 2; use smaller ones",
        at="spec.regions[0].pools[0].excludedIndices",
    ),
    Bad(
        {"spec.regions.0.pools.0.excludedIndices": [1, 1]},
        "spec.regions[0].pools[0].excludedIndices[1]: 1 is listed twice; remove one",
    ),
    Bad(
        {"spec.regions.0.pools.0.excludedIndices": [0], "spec.regions.0.pools.0.minimumLearners": 2},
        (
            "spec.regions[0].pools[0].minimumLearners: 2 is above learners less excludedIndices, 1; use at "
            "most as many, or leave it out"
        ),
        SAME,
    ),
    # Learners of several processes.
    Bad(
        {"spec.regions.0.pools.0.nodesPerLearner": 3},
        f"{LEARNERS_POOL}.batchSize: 16 is not a multiple of a learner's processes, 3 (processesPerNode times "
        "nodesPerLearner); use one that is",
        "is not a multiple of a learner's processes (processesPerNode times nodesPerLearner); use one that is",
        at="spec.regions",
    ),
    Bad(
        {
            "spec.regions.0.pools.0": {
                "name": "new",
                "batchSize": 12,
                "resources": {"limits": {"example.com/gpu": "8", "cpu": "4"}},
            }
        },
        f"{LEARNERS_POOL}.batchSize: 12 is not a multiple of a learner's processes, 8 (processesPerNode times "
        "nodesPerLearner); use one that is",
    ),
    Bad(
        {"spec.regions.0.pools.0.processesPerNode": 2, "spec.regions.0.pools.0.batchSize": "Auto"},
        f"{LEARNERS_POOL}.batchSize: Auto is for learners of one process; use a number",
        SAME,
    ),
    Bad(
        {
            "spec.model": {"entrypoint": "mine.model:make"},
            "spec.data": REMOVED,
            "spec.loop": {"entrypoint": "mine.loop:train"},
            "spec.regions.0.pools.0.processesPerNode": 2,
        },
        f"{LEARNERS_POOL}.processesPerNode: with spec.loop a learner is one process; use processesPerNode 1 and "
        "nodesPerLearner 1",
        SAME,
        at="spec.regions",
    ),
]
