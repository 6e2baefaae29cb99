"""The checks of ``spec/checks.py`` and of the models' validators in CEL, for the API server.

Each has the same text about the same field; the tests run both on the same manifests. The API server checks a default
against the rules before it fills in the defaults inside it, so a rule must be on an object that has no default: most
are on ``spec`` and point to the field. CEL cannot name a position in a list, so there the message names region and
pool. The lists themselves refuse a name that occurs twice, as they are keyed by name.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from diloco.spec.automatic import AUTO, allowed
from diloco.spec.checks import MAXIMUM_LEARNERS, MODEL_ENDING, TEXT_VOCABULARY
from diloco.spec.sync import OVERLAP_LIMIT
from diloco.spec.training import BATCH_LIMIT
from diloco.spec.words import listed


@dataclass(frozen=True)
class Rule:
    """One CEL rule (https://kubernetes.io/docs/reference/using-api/cel/)."""

    holds: str
    """The expression that is true for a valid manifest; ``self`` is the object that has the rule."""
    says: str
    """A CEL expression for the message if it is false."""
    field: str = ""
    """The field at fault, as a path below that object; default: the object itself."""

    def as_object(self) -> dict[str, Any]:
        """As it stands under ``x-kubernetes-validations``."""
        made = {"rule": _line(self.holds), "messageExpression": _line(self.says)}
        return {**made, "fieldPath": f".{self.field}"} if self.field else made


def _line(expression: str) -> str:
    return " ".join(expression.split())


def _words(template: str, *values: str) -> str:
    """A CEL expression for text that contains values.

    It does not use +: the length of such a text is not known in advance, and the API server accepts no rule whose cost
    it cannot estimate.
    """
    return f"'{template}'.format([{', '.join(f'dyn({value})' for value in values)}])"


def _span(low: int, high: str) -> str:
    return f"({high} == {low} ? '{low}' : {_words(f'{low} to %d', high)})"


def _exactly_one(*kinds: str) -> tuple[Rule, ...]:
    wanted = f"use exactly one of {listed(kinds, 'and')}"
    says = f"'has none of {listed(kinds, 'and')}; {wanted}'"
    for count in range(2, len(kinds) + 1):
        for given in combinations(kinds, count):
            condition = " && ".join(f"has(self.{kind})" for kind in given)
            says = f"{condition} ? 'has {listed(given, 'and')}; {wanted}' : {says}"
    others = [kind for kind in kinds if kind != "entrypoint"]
    return (
        Rule(
            holds=f"[{', '.join(f'has(self.{kind})' for kind in kinds)}].exists_one(given, given)",
            says=says,
        ),
        Rule(
            # Compared with {}, because a free-form object has no size in CEL.
            holds="!has(self.arguments) || has(self.entrypoint) || dyn(self.arguments) == dyn({})",
            says=_words(
                "has no use with %s; remove it or use entrypoint",
                " : ".join([*(f"has(self.{kind}) ? '{kind}'" for kind in others[:-1]), f"'{others[-1]}'"]),
            ),
            field="arguments",
        ),
    )


_VOCABULARY = (
    Rule(
        holds="!has(self.model.builtin) || has(self.data.text) || has(self.model.builtin.vocabularySize)",
        says=_words(
            "is missing; with spec.data.%s give the number of token ids",
            "has(self.data.tokens) ? 'tokens' : 'entrypoint'",
        ),
        field="model.builtin.vocabularySize",
    ),
    Rule(
        holds=f"""!has(self.model.builtin) || !has(self.data.text) || !has(self.model.builtin.vocabularySize)
            || self.model.builtin.vocabularySize >= {TEXT_VOCABULARY}""",
        says=_words(
            f"%d is below the {TEXT_VOCABULARY} ids of spec.data.text (256 bytes and an end of document); "
            f"use at least {TEXT_VOCABULARY} or leave it out",
            "self.model.builtin.vocabularySize",
        ),
        field="model.builtin.vocabularySize",
    ),
)

_BATCH_SIZE = "(has(p.batchSize) && type(p.batchSize) == int ? int(p.batchSize) : self.training.batchSize)"
_SIZE_OF_P = "(p.learners - (has(p.excludedIndices) ? p.excludedIndices.size() : 0))"
_LARGEST_BATCH = f"self.regions.map(r, r.pools.map(p, {_SIZE_OF_P} > 0 ? {_BATCH_SIZE} : 0).max()).max()"

_BUDGET = (
    Rule(
        holds="""!has(self.training.evaluation.everyTokens)
            || self.training.evaluation.everyTokens <= self.training.tokens""",
        says=_words(
            "%d is above spec.training.tokens, %d; use 1 to %d or leave it out",
            "self.training.evaluation.everyTokens",
            "self.training.tokens",
            "self.training.tokens",
        ),
        field="training.evaluation.everyTokens",
    ),
    Rule(
        holds=f"{_LARGEST_BATCH} * self.training.sequenceLength <= self.training.tokens",
        says=_words(
            "%d is below one inner step, %d sequences of %d tokens; use at least %d",
            "self.training.tokens",
            _LARGEST_BATCH,
            "self.training.sequenceLength",
            f"{_LARGEST_BATCH} * self.training.sequenceLength",
        ),
        field="training.tokens",
    ),
)

_OPTIMIZER = (
    Rule(
        holds="!has(self.training.optimizer.muon) || self.training.optimizer.kind == 'Muon'",
        says=_words("has no use with kind %s; remove it or use kind Muon", "self.training.optimizer.kind"),
        field="training.optimizer.muon",
    ),
)

_LEARNERS = f"self.regions.map(r, r.pools.map(p, {_SIZE_OF_P}).sum()).sum()"
_LEARNERS_COUNTED = f"({_LEARNERS} == 1 ? '1 learner' : {_words('%d learners', _LEARNERS)})"

_SCHEDULE = (
    Rule(
        holds="type(self.sync.overlap) != int || self.sync.overlap < self.sync.interval",
        says=_words(
            "%d is not below spec.sync.interval, %d; use %s",
            "self.sync.overlap",
            "self.sync.interval",
            _span(0, "self.sync.interval - 1"),
        ),
        field="sync.overlap",
    ),
    Rule(
        holds=f"{_LEARNERS} == 0 || self.sync.quorum <= {_LEARNERS}",
        says=_words(
            "%d is above the %s of spec.regions; use %s", "self.sync.quorum", _LEARNERS_COUNTED, _span(1, _LEARNERS)
        ),
        field="sync.quorum",
    ),
    Rule(
        holds="!has(self.sync.maxStalenessSteps) || self.sync.maxStalenessSteps >= self.sync.interval",
        says=_words(
            "%d is below spec.sync.interval, %d, so every learner would pause for good; use at least %d",
            "self.sync.maxStalenessSteps",
            "self.sync.interval",
            "self.sync.interval",
        ),
        field="sync.maxStalenessSteps",
    ),
)


def _integer_or_auto(least: int, most: int) -> tuple[Rule, ...]:
    wanted = allowed(least, most)
    return (
        Rule(
            holds=f"type(self) == int ? self >= {least} && self <= {most} : self == '{AUTO}'",
            says=(
                "type(self) != int ? "
                + _words(f'"%s" is not known; {wanted}', "self")
                + f" : self < {least} ? "
                + _words(f"%d is too small; {wanted}", "self")
                + " : "
                + _words(f"%d is too large; {wanted}", "self")
            ),
        ),
    )


_PLACEMENT = (
    Rule(
        holds="self.syncer.expose.type != 'ClusterIP' || !self.regions.exists(r, has(r.cluster))",
        says=_words(
            "ClusterIP cannot be reached from the other cluster of region %s; use NodePort, LoadBalancer or External",
            "self.regions.filter(r, has(r.cluster))[0].name",
        ),
        field="syncer.expose.type",
    ),
    Rule(
        holds="!has(self.syncer.expose.host) || self.syncer.expose.type in ['NodePort', 'External']",
        says=_words(
            "has no use with type %s; remove it or use type NodePort or External",
            "self.syncer.expose.type",
        ),
        field="syncer.expose.host",
    ),
    Rule(
        holds="has(self.syncer.expose.host) || self.syncer.expose.type != 'External'",
        says="'is missing; with type External give what leads to the syncer'",
        field="syncer.expose.host",
    ),
    Rule(
        holds="!has(self.syncer.expose.port) || self.syncer.expose.type == 'External'",
        says=_words("has no use with type %s; remove it or use type External", "self.syncer.expose.type"),
        field="syncer.expose.port",
    ),
    Rule(
        holds="has(self.syncer.expose.port) || self.syncer.expose.type != 'External'",
        says="'is missing; with type External give what leads to the syncer'",
        field="syncer.expose.port",
    ),
    Rule(
        holds="""has(self.syncer.expose.host) || self.syncer.expose.type != 'NodePort'
            || !self.regions.exists(r, has(r.cluster))""",
        says="'is missing; with type NodePort and a region in another cluster give the address of a node'",
        field="syncer.expose.host",
    ),
    Rule(
        holds=f"{_LEARNERS} >= 1",
        says="'have 0 learners in all; use at least 1'",
        field="regions",
    ),
    Rule(
        holds=f"{_LEARNERS} <= {MAXIMUM_LEARNERS}",
        says=_words(f"have %d learners in all; use at most {MAXIMUM_LEARNERS}", _LEARNERS),
        field="regions",
    ),
    Rule(
        holds="self.failurePolicy.minimumLearners == 0 || has(self.failurePolicy.maxRestartsPerLearner)",
        says=_words(
            "%d has no effect without spec.failurePolicy.maxRestartsPerLearner: no learner is ever given up; "
            "give both or leave it out",
            "self.failurePolicy.minimumLearners",
        ),
        field="failurePolicy.minimumLearners",
    ),
    Rule(
        holds=f"{_LEARNERS} == 0 || self.failurePolicy.minimumLearners <= {_LEARNERS}",
        says=_words(
            "%d is above the %s of spec.regions; use %s",
            "self.failurePolicy.minimumLearners",
            _LEARNERS_COUNTED,
            _span(0, _LEARNERS),
        ),
        field="failurePolicy.minimumLearners",
    ),
)

_ENDPOINT = Rule(
    holds="!has(self.endpoint) || self.url.startsWith('s3://')",
    says="'has a use only with a url that begins with s3://; remove it'",
    field="endpoint",
)

_BACKUP = (
    _ENDPOINT,
    Rule(
        holds=f"!self.url.endsWith('{MODEL_ENDING}')",
        says=_words("%s names a file; use a folder", "self.url"),
        field="url",
    ),
)

_INIT_FROM = (
    _ENDPOINT,
    Rule(
        holds=f"!self.url.endsWith('{MODEL_ENDING}') || self.kind != 'Resume'",
        says="'Resume needs a folder of backups; use Weights with an exported model'",
        field="kind",
    ),
    Rule(
        holds=f"!self.url.endsWith('{MODEL_ENDING}') || !has(self.backup)",
        says="'has no use with a url of one exported model; remove it'",
        field="backup",
    ),
)

_SIZE = "(self.learners - (has(self.excludedIndices) ? self.excludedIndices.size() : 0))"

_POOL = (
    Rule(
        holds="self.nodesPerLearner <= 1",
        says=_words(
            "%d is not supported yet: a learner is one pod; use 1 or leave it out",
            "self.nodesPerLearner",
        ),
        field="nodesPerLearner",
    ),
    Rule(
        # Duplicates are refused by the list's type.
        holds="!has(self.excludedIndices) || self.excludedIndices.all(i, i < self.learners)",
        says=_words("names an index that is not below learners, %d; use smaller ones", "self.learners"),
        field="excludedIndices",
    ),
    Rule(
        holds=f"!has(self.minimumLearners) || self.minimumLearners <= {_SIZE}",
        says=_words(
            "%d is above %s, %d; use %s or leave it out",
            "self.minimumLearners",
            f"({_SIZE} < self.learners ? 'learners less excludedIndices' : 'learners')",
            _SIZE,
            _span(0, _SIZE),
        ),
        field="minimumLearners",
    ),
)

_LAST_POOL = "self.pools[self.pools.size() - 1]"

_REGION = (
    Rule(
        holds=f"!has({_LAST_POOL}.fallbackAfterSeconds)",
        says=_words(
            "%s is the last pool of %s, so there is none for its fallbackAfterSeconds; remove that, or put a pool "
            "after it",
            f"{_LAST_POOL}.name",
            "self.name",
        ),
        field="pools",
    ),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "spec.model": _exactly_one("builtin", "entrypoint"),
    "spec.data": _exactly_one("text", "tokens", "entrypoint"),
    "spec": (*_VOCABULARY, *_BUDGET, *_OPTIMIZER, *_SCHEDULE, *_PLACEMENT),
    "spec.syncer.backup": _BACKUP,
    "spec.initFrom": _INIT_FROM,
    "spec.regions[]": _REGION,
    "spec.regions[].pools[]": _POOL,
    "spec.sync.overlap": _integer_or_auto(0, OVERLAP_LIMIT),
    "spec.regions[].pools[].batchSize": _integer_or_auto(1, BATCH_LIMIT),
}
"""Rules by the object they are on, in the order of ``checks.problems``."""
