"""Checks across the fields of a job: values that are valid one by one, but not together.

Pure: a function of the spec. Checks that need the model (fragments against tensors) or the data are made where those
are built or opened.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diloco.spec.errors import Problem

if TYPE_CHECKING:
    from diloco.spec.job import JobSpec
    from diloco.spec.placement import Pool

TEXT_VOCABULARY = 257
"""Number of token ids of text data: the 256 bytes, and one that ends a document."""

MODEL_ENDING = ".safetensors"
"""Ending of an exported model's file."""

MAXIMUM_LEARNERS = 10_000
"""Most learners of a job (ours), as one syncer serves them all."""


def problems(spec: "JobSpec") -> list[Problem]:
    """All problems, in the manifest's order. Paths begin at ``spec``'s own fields: ``sync.quorum``."""
    return [
        *_vocabulary(spec),
        *_budget(spec),
        *_optimizer(spec),
        *_schedule(spec),
        *_reachable(spec),
        *_exposed(spec),
        *_backups(spec),
        *_names(spec),
        *_learners(spec),
        *_nodes(spec),
        *_excluded_indices(spec),
        *_minimums(spec),
        *_fallbacks(spec),
    ]


def _pools(spec: "JobSpec") -> Iterator[tuple[str, "Pool"]]:
    for i, region in enumerate(spec.regions):
        for j, pool in enumerate(region.pools):
            yield f"regions[{i}].pools[{j}]", pool


def _learner_count(spec: "JobSpec") -> int:
    return sum(pool.size for _, pool in _pools(spec))


def _vocabulary(spec: "JobSpec") -> Iterator[Problem]:
    model, data = spec.model, spec.data
    if model.builtin is None:
        return
    size, path = model.builtin.vocabulary_size, "model.builtin.vocabularySize"
    if data.text is None and size is None:
        kind = "tokens" if data.tokens is not None else "entrypoint"
        # The syncer builds the initial model, and may run without access to the data.
        yield Problem(path, f"is missing; with spec.data.{kind} give the number of token ids")
    if data.text is not None and size is not None and size < TEXT_VOCABULARY:
        yield Problem(
            path,
            f"{size} is below the {TEXT_VOCABULARY} ids of spec.data.text (256 bytes and an end of document); "
            f"use at least {TEXT_VOCABULARY} or leave it out",
        )


def _budget(spec: "JobSpec") -> Iterator[Problem]:
    training = spec.training
    every = training.evaluation.every_tokens
    if every is not None and every > training.tokens:
        yield Problem(
            "training.evaluation.everyTokens",
            f"{every} is above spec.training.tokens, {training.tokens}; use 1 to {training.tokens} or leave it out",
        )
    batch_sizes = [pool.largest_batch(training) for _, pool in _pools(spec) if pool.size]
    largest = max(batch_sizes, default=training.batch_size)
    step = largest * training.sequence_length
    if step > training.tokens:
        yield Problem(
            "training.tokens",
            f"{training.tokens} is below one inner step, {largest} sequences of {training.sequence_length} tokens; "
            f"use at least {step}",
        )


def _optimizer(spec: "JobSpec") -> Iterator[Problem]:
    optimizer = spec.training.optimizer
    if optimizer.muon is not None and optimizer.kind != "Muon":
        yield Problem("training.optimizer.muon", f"has no use with kind {optimizer.kind}; remove it or use kind Muon")


def _schedule(spec: "JobSpec") -> Iterator[Problem]:
    sync = spec.sync
    if sync.overlap != "Auto" and sync.overlap >= sync.interval:
        yield Problem(
            "sync.overlap",
            f"{sync.overlap} is not below spec.sync.interval, {sync.interval}; use {_span(0, sync.interval - 1)}",
        )
    learners = _learner_count(spec)
    if 1 <= learners < sync.quorum:
        yield Problem(
            "sync.quorum",
            f"{sync.quorum} is above the {_counted(learners, 'learner')} of spec.regions; use {_span(1, learners)}",
        )
    bound = sync.max_staleness_steps
    if bound is not None and bound < sync.interval:
        # A learner that pauses before its fragment is due would never advance the clock to that point.
        yield Problem(
            "sync.maxStalenessSteps",
            f"{bound} is below spec.sync.interval, {sync.interval}, so every learner would pause for good; "
            f"use at least {sync.interval}",
        )


def _reachable(spec: "JobSpec") -> Iterator[Problem]:
    remote = [i for i, region in enumerate(spec.regions) if region.cluster is not None]
    if remote and spec.syncer.expose.type == "ClusterIP":
        yield Problem(
            "syncer.expose.type",
            f"ClusterIP cannot be reached from the other cluster of spec.regions[{remote[0]}]; "
            "use NodePort, LoadBalancer or External",
        )


def _exposed(spec: "JobSpec") -> Iterator[Problem]:
    expose = spec.syncer.expose
    remote = [i for i, region in enumerate(spec.regions) if region.cluster is not None]
    takes = {"host": ("NodePort", "External"), "port": ("External",)}
    for name, types in takes.items():
        if getattr(expose, name) is not None and expose.type not in types:
            yield Problem(
                f"syncer.expose.{name}",
                f"has no use with type {expose.type}; remove it or use type {' or '.join(types)}",
            )
        if getattr(expose, name) is None and expose.type == "External":
            yield Problem(f"syncer.expose.{name}", "is missing; with type External give what leads to the syncer")
    if expose.type == "NodePort" and expose.host is None and remote:
        yield Problem(
            "syncer.expose.host",
            "is missing; with type NodePort and a region in another cluster give the address of a node",
        )


def _backups(spec: "JobSpec") -> Iterator[Problem]:
    begins, backup = spec.init_from, spec.syncer.backup
    for path, given in (("syncer.backup", backup), ("initFrom", begins)):
        if given is not None and given.endpoint is not None and not given.url.startswith("s3://"):
            yield Problem(f"{path}.endpoint", "has a use only with a url that begins with s3://; remove it")
    if backup is not None and backup.url.endswith(MODEL_ENDING):
        yield Problem("syncer.backup.url", f"{backup.url} names a file; use a folder")
    if begins is not None and begins.url.endswith(MODEL_ENDING):
        if begins.kind == "Resume":
            yield Problem("initFrom.kind", "Resume needs a folder of backups; use Weights with an exported model")
        if begins.backup is not None:
            yield Problem("initFrom.backup", "has no use with a url of one exported model; remove it")


def _names(spec: "JobSpec") -> Iterator[Problem]:
    yield from _repeated("regions", [region.name for region in spec.regions], "in the job")
    for i, region in enumerate(spec.regions):
        yield from _repeated(f"regions[{i}].pools", [pool.name for pool in region.pools], f"in region {region.name}")


def _repeated(path: str, names: list[str], where: str) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            yield Problem(
                f"{path}[{index}].name",
                f"{name} is also the name of spec.{path}[{names.index(name)}]; use one that is unique {where}",
            )


def _learners(spec: "JobSpec") -> Iterator[Problem]:
    learners = _learner_count(spec)
    if learners == 0:
        yield Problem("regions", "have 0 learners in all; use at least 1")
    if learners > MAXIMUM_LEARNERS:
        yield Problem("regions", f"have {learners} learners in all; use at most {MAXIMUM_LEARNERS}")
    minimum = spec.failure_policy.minimum_learners
    if minimum and spec.failure_policy.max_restarts_per_learner is None:
        yield Problem(
            "failurePolicy.minimumLearners",
            f"{minimum} has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; "
            "give both or leave it out",
        )
    elif minimum > learners > 0:
        yield Problem(
            "failurePolicy.minimumLearners",
            f"{minimum} is above the {_counted(learners, 'learner')} of spec.regions; use {_span(0, learners)}",
        )


def _nodes(spec: "JobSpec") -> Iterator[Problem]:
    for path, pool in _pools(spec):
        if pool.nodes_per_learner > 1:
            yield Problem(
                f"{path}.nodesPerLearner",
                f"{pool.nodes_per_learner} is not supported yet: a learner is one pod; use 1 or leave it out",
            )


def _excluded_indices(spec: "JobSpec") -> Iterator[Problem]:
    for path, pool in _pools(spec):
        for place, index in enumerate(pool.excluded_indices):
            where = f"{path}.excludedIndices[{place}]"
            if index >= pool.learners:
                allowed = f"use {_span(0, pool.learners - 1)}" if pool.learners else "remove it"
                yield Problem(where, f"{index} is no index of the pool, which has learners: {pool.learners}; {allowed}")
            elif index in pool.excluded_indices[:place]:
                yield Problem(where, f"{index} is listed twice; remove one")


def _minimums(spec: "JobSpec") -> Iterator[Problem]:
    for path, pool in _pools(spec):
        minimum = pool.minimum_learners
        if minimum is None or minimum <= pool.size:
            continue
        which = "learners less excludedIndices" if pool.excluded_indices else "learners"
        yield Problem(
            f"{path}.minimumLearners",
            f"{minimum} is above {which}, {pool.size}; use {_span(0, pool.size)} or leave it out",
        )


def _fallbacks(spec: "JobSpec") -> Iterator[Problem]:
    for i, region in enumerate(spec.regions):
        last = region.pools[-1]
        if last.fallback_after_seconds is not None:
            yield Problem(
                f"regions[{i}].pools",
                f"{last.name} is the last pool of {region.name}, so there is none for its fallbackAfterSeconds; remove "
                "that, or put a pool after it",
            )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
