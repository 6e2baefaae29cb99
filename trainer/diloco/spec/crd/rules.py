"""The checks of ``spec/checks.py`` and of the models' validators in CEL, for the API server.

Each has the same text about the same field; the tests run both on the same manifests. The API server checks a default
against the rules before it fills in the defaults inside it, so a rule must be on an object that has no default: most
are on ``spec`` and point to the field. CEL cannot name a position in a list, so there the message names the region.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from diloco.spec.automatic import AUTO, allowed
from diloco.spec.checks import (
    HSDP_OF_SEVERAL,
    LEAST_LENGTH,
    LOST_BY_TOP_K,
    MAXIMUM_LEARNERS,
    MAXIMUM_PODS,
    MAXIMUM_POOLS,
    MODEL_ENDING,
    OF_A_LOOP,
    OF_OWN_CODE,
    QUEUED_ELSEWHERE,
    QUEUED_FALLBACK,
    TOO_SHORT,
    TOP_K_ON_ONE_WAY,
)
from diloco.spec.placement import Pool
from diloco.spec.presets import TEXT_VOCABULARY
from diloco.spec.sync import OVERLAP_LIMIT
from diloco.spec.tracking import ONE_OF_EACH, TrackerName
from diloco.spec.training import NEEDS_WEIGHTS, DataSpec
from diloco.spec.words import exactly_one


@dataclass(frozen=True)
class Rule:
    """One CEL rule (https://kubernetes.io/docs/reference/using-api/cel/)."""

    holds: str
    """The expression that is true for a valid manifest; ``self`` is the object that has the rule."""
    says: str
    """The message if it is false, with a ``%s`` for each of ``values``."""
    field: str = ""
    """The field at fault, as a path below that object; default: the object itself."""
    values: tuple[str, ...] = ()
    """CEL expressions."""

    def as_object(self) -> dict[str, Any]:
        """As it stands under ``x-kubernetes-validations``."""
        # Not joined by +: the API server accepts no rule whose cost it cannot estimate, as that of such a text.
        values = ", ".join(f"dyn({value})" for value in self.values)
        message = {"messageExpression": f"'{self.says}'.format([{values}])"} if values else {"message": self.says}
        made = {"rule": " ".join(self.holds.split()), **message}
        return {**made, "fieldPath": f".{self.field}"} if self.field else made


_ARGUMENTS = Rule(
    # Compared with {}, because a free-form object has no size in CEL.
    "!has(self.arguments) || has(self.entrypoint) || dyn(self.arguments) == dyn({})",
    "has no use without entrypoint; remove it or use entrypoint",
    "arguments",
)


def _one_given(at: str, sources: Iterable[str]) -> str:
    given = ", ".join(f"has({at}.{source})" for source in sources)
    return f"[{given}].exists_one(given, given)"


def _integer_or_auto(least: int, most: int) -> tuple[Rule, ...]:
    # In Kubernetes 1.33 the comparison of two types, or of what may be a word with a number, counts as if each were
    # 3 MB long; in each pool that costs more than all rules may.
    holds = f"type(self) in [int] ? int(self) >= {least} && int(self) <= {most} : self == '{AUTO}'"
    return (Rule(holds, f"%s is not allowed; {allowed(least, most)}", values=("self",)),)


def _sum(of_pool: str) -> str:
    return f"self.regions.map(r, r.pools.map(p, {of_pool}).sum()).sum()"


def _or_default(pool: str, field: str) -> str:
    """A number of a pool. Items of lists have no defaults that the API server would fill in."""
    return f"(has({pool}.{field}) ? {pool}.{field} : {_POOL_DEFAULTS[field]})"


def _size(pool: str) -> str:
    excluded = f"(has({pool}.excludedIndices) ? {pool}.excludedIndices.size() : 0)"
    return f"({_or_default(pool, 'learners')} - {excluded})"


_POOL_DEFAULTS = {field.alias: field.default for field in Pool.model_fields.values()}
_LEARNERS = _sum(_size("p"))
_PODS = _sum(f"{_size('p')} * {_or_default('p', 'nodesPerLearner')}")
_POOLS = "self.regions.map(r, r.pools.size()).sum()"
_BATCH_SIZE = "(has(p.batchSize) ? p.batchSize : self.training.batchSize)"
_STEP_TOKENS = (
    f"self.regions.map(r, r.pools.map(p, {_size('p')} > 0 ? {_BATCH_SIZE} : 0).max()).max()"
    " * self.training.sequenceLength"
)
_REMOTE = "self.regions.exists(r, has(r.cluster))"


def _ranks(pool: str) -> str:
    """Of a learner; those that follow from accelerators in the limits count as one."""
    return f"(has({pool}.processesPerNode) ? {pool}.processesPerNode : 1) * {_or_default(pool, 'nodesPerLearner')}"


def _at_most_learners(field: str) -> Rule:
    return Rule(
        f"self.{field} <= {_LEARNERS} || {_LEARNERS} == 0",
        "%s is above the learners of spec.regions, %s; use at most as many",
        field,
        (f"self.{field}", _LEARNERS),
    )


_TRACKERS = get_args(TrackerName)
_OWN_CODE = "(has(self.task) || has(self.loop))"
_SPEC = (
    Rule(f"{_OWN_CODE} || {_one_given('self.data', DataSpec().sources)}", exactly_one(DataSpec().sources), "data"),
    Rule(f"{_OWN_CODE} || self.training.sequenceLength >= {LEAST_LENGTH}", TOO_SHORT, "training.sequenceLength"),
    *(
        Rule(f"!{_OWN_CODE} || {unused}", OF_OWN_CODE, f"data.{name}")
        for name, unused in {
            **{source: f"!has(self.data.{source})" for source in DataSpec().sources},
            "documentMask": "!self.data.documentMask",
        }.items()
    ),
    *(
        Rule(f"!has(self.loop) || {unused}", OF_A_LOOP, field)
        for field, unused in {
            "task": "!has(self.task)",
            "model.parallelize": "!has(self.model.parallelize)",
            "training.microBatchSize": "!has(self.training.microBatchSize)",
            "training.precision": "self.training.precision == 'Auto'",
            "training.compile": "!self.training.compile",
            "training.activationCheckpointing": "self.training.activationCheckpointing == 'None'",
        }.items()
    ),
    Rule(
        "!has(self.training.tracking) || "
        + " && ".join(f"self.training.tracking.filter(t, has(t.{name})).size() <= 1" for name in _TRACKERS),
        ONE_OF_EACH,
        "training.tracking",
    ),
    Rule(
        """!has(self.loop)
            || self.regions.all(r, r.pools.all(p, !has(p.parallelism) || p.parallelism == 'FSDP'))""",
        f"have a parallelism that {OF_A_LOOP}",
        "regions",
    ),
    Rule(
        "!has(self.model.builtin) || has(self.data.text) || has(self.model.builtin.vocabularySize)",
        "is missing; without spec.data.text give the number of token ids",
        "model.builtin.vocabularySize",
    ),
    Rule(
        f"""!has(self.model.builtin) || !has(self.data.text) || !has(self.model.builtin.vocabularySize)
            || self.model.builtin.vocabularySize >= {TEXT_VOCABULARY}""",
        f"%s is below the {TEXT_VOCABULARY} ids of spec.data.text (256 bytes and an end of document); "
        f"use at least {TEXT_VOCABULARY} or leave it out",
        "model.builtin.vocabularySize",
        ("self.model.builtin.vocabularySize",),
    ),
    Rule(
        """!has(self.training.evaluation.everyTokens)
            || self.training.evaluation.everyTokens <= self.training.tokens""",
        "%s is above spec.training.tokens, %s; use at most as many, or leave it out",
        "training.evaluation.everyTokens",
        ("self.training.evaluation.everyTokens", "self.training.tokens"),
    ),
    Rule(
        f"{_STEP_TOKENS} <= self.training.tokens",
        "%s is below the tokens of one inner step; use at least %s",
        "training.tokens",
        ("self.training.tokens", _STEP_TOKENS),
    ),
    Rule(
        "!has(self.training.optimizer.muon) || self.training.optimizer.type == 'Muon'",
        "has no use without type Muon; remove it or use type Muon",
        "training.optimizer.muon",
    ),
    Rule(
        """!has(self.training.optimizer.groups) || self.training.optimizer.type == 'Muon'
            || self.training.optimizer.groups.all(g, !has(g.optimizer))""",
        "has no use without type Muon; remove it or use type Muon",
        "training.optimizer.groups",
    ),
    Rule(
        "type(self.sync.overlap) != int || self.sync.overlap < self.sync.interval",
        "%s is not below spec.sync.interval, %s; use a smaller one",
        "sync.overlap",
        ("self.sync.overlap", "self.sync.interval"),
    ),
    Rule(
        "!has(self.sync.density) || self.sync.compression == 'TopK'",
        "has no use without compression TopK; remove it or use TopK",
        "sync.density",
    ),
    Rule("self.sync.downlink != 'TopK' || self.sync.compression == 'TopK'", TOP_K_ON_ONE_WAY, "sync.downlink"),
    Rule("self.sync.errorFeedback || self.sync.compression != 'TopK'", LOST_BY_TOP_K, "sync.errorFeedback"),
    _at_most_learners("sync.quorum"),
    Rule(
        "!has(self.sync.maxStalenessSteps) || self.sync.maxStalenessSteps >= self.sync.interval",
        "%s is below spec.sync.interval, %s, so every learner would pause for good; use at least as many",
        "sync.maxStalenessSteps",
        ("self.sync.maxStalenessSteps", "self.sync.interval"),
    ),
    Rule(
        f"self.syncer.expose.type != 'ClusterIP' || !{_REMOTE}",
        "ClusterIP cannot be reached from other clusters, and a region is in one; "
        "use NodePort, LoadBalancer or External",
        "syncer.expose.type",
    ),
    Rule(
        "!has(self.syncer.expose.host) || self.syncer.expose.type in ['NodePort', 'External']",
        "has no use without type NodePort or External; remove it or use one of them",
        "syncer.expose.host",
    ),
    Rule(
        f"""has(self.syncer.expose.host) || self.syncer.expose.type != 'External'
            && (self.syncer.expose.type != 'NodePort' || !{_REMOTE})""",
        "is missing; give the address at which learners outside the cluster reach the syncer",
        "syncer.expose.host",
    ),
    Rule(
        "!has(self.syncer.expose.port) || self.syncer.expose.type == 'External'",
        "has no use without type External; remove it or use type External",
        "syncer.expose.port",
    ),
    Rule(
        "has(self.syncer.expose.port) || self.syncer.expose.type != 'External'",
        "is missing; with type External give the port of that address",
        "syncer.expose.port",
    ),
    Rule(
        f"{_POOLS} <= {MAXIMUM_POOLS}",
        f"have %s pools in all; use at most {MAXIMUM_POOLS}",
        "regions",
        (_POOLS,),
    ),
    Rule(
        f"{_LEARNERS} >= 1 && {_LEARNERS} <= {MAXIMUM_LEARNERS}",
        f"have %s learners in all; use 1 to {MAXIMUM_LEARNERS}",
        "regions",
        (_LEARNERS,),
    ),
    Rule(
        f"{_LEARNERS} > {MAXIMUM_LEARNERS} || {_PODS} <= {MAXIMUM_PODS}",
        f"have %s nodes of learners in all; use at most {MAXIMUM_PODS}",
        "regions",
        (_PODS,),
    ),
    Rule(
        "self.failurePolicy.minimumLearners == 0 || has(self.failurePolicy.maxRestartsPerLearner)",
        "has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; "
        "give both or leave it out",
        "failurePolicy.minimumLearners",
    ),
    _at_most_learners("failurePolicy.minimumLearners"),
    Rule(
        f"""has(self.model.parallelize) || has(self.loop)
            || self.regions.all(r, r.pools.all(p, {_BATCH_SIZE} % ({_ranks("p")}) == 0))""",
        "have a batchSize that is not a multiple of a learner's processes (processesPerNode times nodesPerLearner); "
        "use one that is",
        "regions",
    ),
    Rule(f"!has(self.queue) || !{_REMOTE}", QUEUED_ELSEWHERE, "queue"),
    Rule(
        "!has(self.queue) || !self.regions.exists(r, r.pools.exists(p, has(p.fallbackAfterSeconds)))",
        QUEUED_FALLBACK,
        "queue",
    ),
)

_ENDPOINT = Rule(
    "!has(self.endpoint) || self.url.startsWith('s3://')",
    "has a use only with a url that begins with s3://; remove it",
    "endpoint",
)

_BACKUP = (_ENDPOINT, Rule(f"!self.url.endsWith('{MODEL_ENDING}')", "names a file; use a folder", "url"))

_INIT_FROM = (
    _ENDPOINT,
    Rule(
        f"!self.url.endsWith('{MODEL_ENDING}') || self.type != 'Resume'",
        "Resume needs a folder of backups; use Weights with an exported model",
        "type",
    ),
    Rule(
        f"!self.url.endsWith('{MODEL_ENDING}') || !has(self.backup)",
        "has no use with a url of one exported model; remove it",
        "backup",
    ),
)

_POOL = (
    Rule(
        # Duplicates are refused by the list's type.
        f"!has(self.excludedIndices) || self.excludedIndices.all(i, i < {_or_default('self', 'learners')})",
        "names an index that is not below learners, %s; use smaller ones",
        "excludedIndices",
        (_or_default("self", "learners"),),
    ),
    Rule(
        f"!has(self.minimumLearners) || self.minimumLearners <= {_size('self')}",
        "%s is above learners less excludedIndices, %s; use at most as many, or leave it out",
        "minimumLearners",
        ("self.minimumLearners", _size("self")),
    ),
    Rule(
        # Processes may follow from accelerators in the limits.
        f"""!has(self.parallelism) || self.parallelism != 'HSDP'
            || {_or_default("self", "nodesPerLearner")} > 1
            && (!has(self.processesPerNode) || self.processesPerNode > 1)""",
        HSDP_OF_SEVERAL,
        "parallelism",
    ),
)

_REGION = (
    Rule(
        "!has(self.pools[self.pools.size() - 1].fallbackAfterSeconds)",
        "fallbackAfterSeconds of the last pool has no effect, as no pool of the region follows; "
        "remove it, or add a pool after it",
        "pools",
    ),
)

_MODELS = ("builtin", "huggingface", "entrypoint")
_PARTS = ("text", "tokens", "documents")

RULES: dict[str, tuple[Rule, ...]] = {
    "spec.model": (
        Rule(_one_given("self", _MODELS), exactly_one(_MODELS)),
        _ARGUMENTS,
        Rule(
            "!has(self.adapter) || has(self.huggingface) && has(self.huggingface.weights) && self.huggingface.weights",
            NEEDS_WEIGHTS,
            "adapter",
        ),
    ),
    "spec.data": (_ARGUMENTS,),
    "spec.data.mixture[]": (Rule(_one_given("self", _PARTS), exactly_one(_PARTS)),),
    "spec.training.tracking[]": (Rule(_one_given("self", _TRACKERS), exactly_one(_TRACKERS)),),
    "spec": _SPEC,
    "spec.syncer.backup": _BACKUP,
    "spec.initFrom": _INIT_FROM,
    "spec.regions[]": _REGION,
    "spec.regions[].pools[]": _POOL,
    "spec.sync.overlap": _integer_or_auto(0, OVERLAP_LIMIT),
}
"""Rules by the object they are on, in the order of ``checks.problems``."""
