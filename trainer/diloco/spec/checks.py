"""Checks across the fields of a job: values that are valid one by one, but not together.

Pure: a function of the spec. Checks that need the model (fragments against tensors) or the data are made where those
are built or opened.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from diloco.spec.errors import Problem
from diloco.spec.pods import PodSpec
from diloco.spec.presets import TEXT_VOCABULARY
from diloco.spec.tracking import ONE_OF_EACH
from diloco.spec.training import DataSpec, Evaluation, InnerOptimizer
from diloco.spec.words import listed, not_one

if TYPE_CHECKING:
    from diloco.spec.job import JobSpec
    from diloco.spec.placement import Pool, SyncerSpec

MODEL_ENDING = ".safetensors"
"""Ending of an exported model's file."""

OF_A_LOOP = "has no use with spec.loop, whose code decides it; remove one of them"
OF_OWN_CODE = "has no use with spec.task or spec.loop, whose code decides it; remove one of them"
"""The problem with a setting of what code of the user's own does."""


TOP_K_ON_ONE_WAY = "TopK needs compression TopK; use it there too, or Int8 in place of TopK"
LOST_BY_TOP_K = "false loses what compression TopK does not send; use true, or Int4 in place of TopK"

HSDP_OF_SEVERAL = (
    "HSDP is for learners of several nodes (nodesPerLearner) with several processes each (processesPerNode); use FSDP"
)

QUEUED_ELSEWHERE = "is for pods of this cluster, and a region is in another; remove one of them"
QUEUED_FALLBACK = "has Kueue choose the nodes, and a pool has fallbackAfterSeconds; remove one of them"

LEAST_LENGTH = 2
"""Fewest tokens in a sequence of a language model."""
TOO_SHORT = f"1 has a use only with spec.task or spec.loop; use at least {LEAST_LENGTH}"

MAXIMUM_LEARNERS = 10_000
"""Most learners of a job (ours), as one syncer serves them all."""
MAXIMUM_POOLS = 256
"""Most pools of a job (ours): each has objects and a certificate of its own, which the operator looks at together."""
MAXIMUM_PODS = 10_000
"""Most nodes of all learners (ours), a pod each, as the operator lists them all."""


def problems(spec: "JobSpec") -> list[Problem]:
    """All problems, in the manifest's order. Paths begin at ``spec``'s own fields: ``sync.quorum``."""
    return [problem for rule in _rules() for problem in rule(spec)]


def problems_of_known(spec: "JobSpec") -> list[Problem]:
    """The problems that do not depend on fields that ``spec`` lacks, as they were wrong by themselves."""
    found: list[Problem] = []
    for rule in _rules():
        with suppress(AttributeError):
            found += rule(spec)
    return found


def _rules() -> tuple[Callable[["JobSpec"], Iterator[Problem]], ...]:
    return (
        _loop,
        _data,
        _vocabulary,
        _training,
        _tracking,
        _optimizer,
        _schedule,
        _encoding,
        _quorum,
        _exposed,
        _backups,
        _learners,
        _pool_sizes,
        _units,
        _fallbacks,
        _queue,
        _resource_claims,
    )


def _pools(spec: "JobSpec") -> Iterator[tuple[str, "Pool"]]:
    for i, region in enumerate(spec.regions):
        for j, pool in enumerate(region.pools):
            yield f"regions[{i}].pools[{j}]", pool


def _at_most_learners(spec: "JobSpec", path: str, value: int) -> Iterator[Problem]:
    learners = sum(pool.size for _, pool in _pools(spec))
    if value > learners > 0:
        yield Problem(path, f"{value} is above the learners of spec.regions, {learners}; use at most as many")


def _loop(spec: "JobSpec") -> Iterator[Problem]:
    if spec.loop is None:
        return
    training = spec.training
    # An API server fills in defaults, so a value that is the default counts as absent.
    for path, given in (
        ("task", spec.task is not None),
        ("model.parallelize", spec.model.parallelize is not None),
        ("data.holdoutFraction", spec.data.holdout_fraction != DataSpec().holdout_fraction),
        ("training.microBatchSize", training.micro_batch_size is not None),
        ("training.precision", training.precision != "Auto"),
        ("training.compile", training.compile),
        ("training.activationCheckpointing", training.activation_checkpointing != "None"),
        ("training.optimizer", training.optimizer != InnerOptimizer()),
        ("training.evaluation.sequences", training.evaluation.sequences != Evaluation().sequences),
    ):
        if given:
            yield Problem(path, OF_A_LOOP)
    for path, pool in _pools(spec):
        if pool.parallelism != "FSDP":
            yield Problem(f"{path}.parallelism", OF_A_LOOP)


def _data(spec: "JobSpec") -> Iterator[Problem]:
    if not spec.has_own_code:
        if problem := not_one(spec.data.sources):
            yield Problem("data", problem)
        if spec.training.sequence_length < LEAST_LENGTH:
            yield Problem("training.sequenceLength", TOO_SHORT)
        return
    for name, given in {**spec.data.sources, "documentMask": spec.data.document_mask or None}.items():
        if given is not None:
            yield Problem(f"data.{name}", OF_OWN_CODE)


def _vocabulary(spec: "JobSpec") -> Iterator[Problem]:
    model, data = spec.model, spec.data
    if model.builtin is None or (not spec.has_own_code and not_one(data.sources)):
        return
    size, path = model.builtin.vocabulary_size, "model.builtin.vocabularySize"
    if data.text is None and size is None:
        # The syncer builds the initial model, and may run without access to the data.
        yield Problem(path, "is missing; without spec.data.text give the number of token ids")
    if data.text is not None and size is not None and size < TEXT_VOCABULARY:
        yield Problem(
            path,
            f"{size} is below the {TEXT_VOCABULARY} ids of spec.data.text (256 bytes and an end of document); "
            f"use at least {TEXT_VOCABULARY} or leave it out",
        )


def _training(spec: "JobSpec") -> Iterator[Problem]:
    training = spec.training
    every = training.evaluation.every_tokens
    if every is not None and every > training.tokens:
        yield Problem(
            "training.evaluation.everyTokens",
            f"{every} is above spec.training.tokens, {training.tokens}; use at most as many, or leave it out",
        )
    batch_sizes = [pool.batch_of(training) for _, pool in _pools(spec) if pool.size]
    step = max(batch_sizes, default=training.batch_size) * training.sequence_length
    if step > training.tokens:
        yield Problem(
            "training.tokens", f"{training.tokens} is below the tokens of one inner step; use at least {step}"
        )


def _tracking(spec: "JobSpec") -> Iterator[Problem]:
    names = [one.name for one in spec.training.tracking]
    if len(set(names)) < len(names):
        yield Problem("training.tracking", ONE_OF_EACH)


def _optimizer(spec: "JobSpec") -> Iterator[Problem]:
    optimizer = spec.training.optimizer
    if optimizer.type != "Muon":
        of_groups = ((f".groups[{i}].optimizer", group.optimizer) for i, group in enumerate(optimizer.groups))
        for name, value in ((".muon", optimizer.muon), *of_groups):
            if value is not None:
                path = f"training.optimizer{name}"
                yield Problem(path, "has no use without type Muon; remove it or use type Muon")
    if spec.model.builtin is not None:
        names = [name for name, _ in spec.model.builtin.shapes()]
        for path, pattern in optimizer.idle_patterns(names):
            yield Problem(path, f"{pattern} matches no parameter of the built-in model, such as {names[2]}; remove it")


def _schedule(spec: "JobSpec") -> Iterator[Problem]:
    sync = spec.sync
    if sync.overlap != "Auto" and sync.overlap >= sync.interval:
        yield Problem(
            "sync.overlap", f"{sync.overlap} is not below spec.sync.interval, {sync.interval}; use a smaller one"
        )
    bound = sync.max_staleness_steps
    if bound is not None and bound < sync.interval:
        # A learner that pauses before its fragment is due would never advance the clock to that point.
        yield Problem(
            "sync.maxStalenessSteps",
            f"{bound} is below spec.sync.interval, {sync.interval}, so every learner would pause for good; "
            "use at least as many",
        )


def _encoding(spec: "JobSpec") -> Iterator[Problem]:
    sync = spec.sync
    if sync.density is not None and sync.compression != "TopK":
        yield Problem("sync.density", "has no use without compression TopK; remove it or use TopK")
    if sync.compression == "TopK" and not sync.error_feedback:
        yield Problem("sync.errorFeedback", LOST_BY_TOP_K)
    if sync.downlink == "TopK" and sync.compression != "TopK":
        yield Problem("sync.downlink", TOP_K_ON_ONE_WAY)


def _quorum(spec: "JobSpec") -> Iterator[Problem]:
    yield from _at_most_learners(spec, "sync.quorum", spec.sync.quorum)


def _exposed(spec: "JobSpec") -> Iterator[Problem]:
    expose, remote = spec.syncer.expose, any(region.cluster is not None for region in spec.regions)
    kind, host, port = expose.type, "syncer.expose.host", "syncer.expose.port"
    if remote and kind == "ClusterIP":
        yield Problem(
            "syncer.expose.type",
            "ClusterIP cannot be reached from other clusters, and a region is in one; "
            "use NodePort, LoadBalancer or External",
        )
    if expose.host is not None and kind not in ("NodePort", "External"):
        yield Problem(host, "has no use without type NodePort or External; remove it or use one of them")
    if expose.host is None and (kind == "External" or (kind == "NodePort" and remote)):
        yield Problem(host, "is missing; give the address at which learners outside the cluster reach the syncer")
    if expose.port is not None and kind != "External":
        yield Problem(port, "has no use without type External; remove it or use type External")
    if expose.port is None and kind == "External":
        yield Problem(port, "is missing; with type External give the port of that address")


def _backups(spec: "JobSpec") -> Iterator[Problem]:
    begins, backup = spec.init_from, spec.syncer.backup
    for path, given in (("syncer.backup", backup), ("initFrom", begins)):
        if given is not None and given.endpoint is not None and not given.url.startswith("s3://"):
            yield Problem(f"{path}.endpoint", "has a use only with a url that begins with s3://; remove it")
    if backup is not None and backup.url.endswith(MODEL_ENDING):
        yield Problem("syncer.backup.url", f"{backup.url} names a file; use a folder")
    if begins is not None and begins.url.endswith(MODEL_ENDING):
        if begins.type == "Resume":
            yield Problem("initFrom.type", "Resume needs a folder of backups; use Weights with an exported model")
        if begins.backup is not None:
            yield Problem("initFrom.backup", "has no use with a url of one exported model; remove it")


def _learners(spec: "JobSpec") -> Iterator[Problem]:
    pools = sum(len(region.pools) for region in spec.regions)
    if pools > MAXIMUM_POOLS:
        yield Problem("regions", f"have {pools} pools in all; use at most {MAXIMUM_POOLS}")
    learners = sum(pool.size for _, pool in _pools(spec))
    if not 1 <= learners <= MAXIMUM_LEARNERS:
        yield Problem("regions", f"have {learners} learners in all; use 1 to {MAXIMUM_LEARNERS}")
    elif (pods := sum(pool.size * pool.nodes_per_learner for _, pool in _pools(spec))) > MAXIMUM_PODS:
        yield Problem("regions", f"have {pods} nodes of learners in all; use at most {MAXIMUM_PODS}")
    minimum, path = spec.failure_policy.minimum_learners, "failurePolicy.minimumLearners"
    if minimum and spec.failure_policy.max_restarts_per_learner is None:
        yield Problem(
            path,
            f"{minimum} has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; "
            "give both or leave it out",
        )
    else:
        yield from _at_most_learners(spec, path, minimum)


def _pool_sizes(spec: "JobSpec") -> Iterator[Problem]:
    for path, pool in _pools(spec):
        for place, index in enumerate(pool.excluded_indices):
            where = f"{path}.excludedIndices[{place}]"
            if index >= pool.learners:
                yield Problem(where, f"{index} is not below learners, {pool.learners}; use smaller ones")
            elif index in pool.excluded_indices[:place]:
                yield Problem(where, f"{index} is listed twice; remove one")
        minimum = pool.minimum_learners
        if minimum is not None and minimum > pool.size:
            yield Problem(
                f"{path}.minimumLearners",
                f"{minimum} is above learners less excludedIndices, {pool.size}; use at most as many, or leave it out",
            )


def _units(spec: "JobSpec") -> Iterator[Problem]:
    for path, pool in _pools(spec):
        ranks, batch = pool.ranks, pool.batch_of(spec.training)
        if pool.parallelism == "HSDP" and 1 in (pool.processes, pool.nodes_per_learner):
            yield Problem(f"{path}.parallelism", HSDP_OF_SEVERAL)
        if ranks == 1 or spec.loop is not None:
            continue
        if batch % ranks and spec.model.parallelize is None:
            yield Problem(
                f"{path}.batchSize",
                f"{batch} is not a multiple of a learner's processes, {ranks} (processesPerNode times "
                "nodesPerLearner); use one that is",
            )


def _fallbacks(spec: "JobSpec") -> Iterator[Problem]:
    for i, region in enumerate(spec.regions):
        last = len(region.pools) - 1
        if region.pools[last].fallback_after_seconds is not None:
            yield Problem(
                f"regions[{i}].pools[{last}].fallbackAfterSeconds",
                "has no effect, as no pool of the region follows; remove it, or add a pool after it",
            )


def _queue(spec: "JobSpec") -> Iterator[Problem]:
    if spec.queue is None:
        return
    if any(region.cluster is not None for region in spec.regions):
        yield Problem("queue", QUEUED_ELSEWHERE)
    if any(pool.fallback_after_seconds is not None for _, pool in _pools(spec)):
        yield Problem("queue", QUEUED_FALLBACK)


def _resource_claims(spec: "JobSpec") -> Iterator[Problem]:
    given: list[tuple[str, Pool | SyncerSpec]] = [*_pools(spec), ("syncer", spec.syncer)]
    for path, pods in given:
        template = pods.pod_template.spec if pods.pod_template is not None else PodSpec()
        has = [claim["name"] for claim in template.resource_claims]
        used = [("resources", pods.resources.claims if pods.resources is not None else ())]
        for i, container in enumerate(template.init_containers):
            place = f"podTemplate.spec.initContainers[{i}].resources"
            used.append((place, container.get("resources", {}).get("claims", ())))
        for place, claims in used:
            for i, claim in enumerate(claims):
                if claim["name"] not in has:
                    use = f"use {listed(has, 'or')}" if has else "add it there"
                    text = f"{claim['name']} is not in podTemplate.spec.resourceClaims; {use}"
                    yield Problem(f"{path}.{place}.claims[{i}].name", text)
