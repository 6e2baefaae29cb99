"""CEL transition rules that make fields of an existing job immutable: all fields except those listed here.

A field that is added to the models is immutable until it is listed in ``MUTABLE``, or in ``MUTABLE_SUSPENDED``, which
has the fields of a pod's template that the operator can change while no pod runs. A rule on a pool cannot see whether
the job is suspended, so the rules for those are on the spec and compare the field over all pools. Each leaf has a rule
of its own, so that the API server's message names it.
"""

from typing import Any

from diloco.spec.crd_schema import add_rules, fields
from diloco.spec.words import Schema

MUTABLE = frozenset(
    {
        "spec.suspend",
        "spec.activeDeadlineSeconds",
        "spec.ttlSecondsAfterFinished",
        "spec.failurePolicy.lostPods.action",
        "spec.failurePolicy.lostPods.afterSeconds",
        "spec.syncer.resources",
        "spec.syncer.podTemplate",
        "spec.syncer.storage.adopt",
        "spec.syncer.expose.host",
        "spec.syncer.expose.port",
        "spec.syncer.expose.sourceRanges",
        "spec.regions[].pools[].learners",
        "spec.regions[].pools[].minimumLearners",
        "spec.regions[].pools[].excludedIndices",
        "spec.regions[].pools[].fallbackAfterSeconds",
        "spec.regions[].pools[].resources",
        "spec.regions[].pools[].storage.whenDeleted",
        "spec.regions[].pools[].storage.whenScaled",
    }
)
"""Fields that the operator can change while the job runs."""

MUTABLE_SUSPENDED = frozenset(
    {
        "spec.image",
        "spec.initFrom",
        "spec.syncer.backup",
        "spec.regions[].pools[].image",
        "spec.regions[].pools[].nodeSelector",
        "spec.regions[].pools[].tolerations",
        "spec.regions[].pools[].affinity",
        "spec.regions[].pools[].priorityClassName",
        "spec.regions[].pools[].runtimeClassName",
        "spec.regions[].pools[].env",
        "spec.regions[].pools[].volumes",
        "spec.regions[].pools[].volumeMounts",
        "spec.regions[].pools[].imagePullSecrets",
        "spec.regions[].pools[].podTemplate",
    }
)
"""Fields that can be changed while the job is suspended, or in the update that suspends or resumes it."""

MESSAGE = "cannot be changed once the job exists; a job of another name may have another value"
WHILE_RUNNING = "cannot be changed while the job runs; suspend it (spec.suspend: true), then change it"
_SUSPENDED = "self.suspend || oldSelf.suspend"
_OF_POOL = "spec.regions[].pools[]."


def add_immutability(node: Schema, path: str, key: str = "") -> None:
    """Add rules to ``node``, the structural schema of the object at ``path``, and to its fields.

    ``key`` is the field that identifies it in a list, which is the same before and after an update anyway.
    """
    for name, field, always in fields(node):
        place = f"{path}.{name}"
        if place in MUTABLE or name == key:
            continue
        if place in MUTABLE_SUSPENDED:
            if place.removeprefix("spec.") == name:
                _keep_while_running(node, name)
            continue
        if "x-kubernetes-list-map-keys" in field:
            _keep_items(field, f"{place}[]")
        elif "properties" in field:
            if not always:
                add_rules(node, [_rule(f"has(self.{name}) == has(oldSelf.{name})", name)])
            add_immutability(field, place)
        elif always:
            add_rules(field, [_rule("self == oldSelf")])
        else:
            # A rule on a field that was or is absent is not evaluated, so the rule is on its parent.
            same = f"!has(self.{name}) || self.{name} == oldSelf.{name}"
            add_rules(node, [_rule(f"has(self.{name}) == has(oldSelf.{name}) && ({same})", name)])


def add_immutability_while_running(spec: Schema) -> None:
    """Add the rules about pools' fields to ``spec``, the structural schema of the whole spec."""
    for place in sorted(MUTABLE_SUSPENDED):
        name = place.removeprefix(_OF_POOL)
        if name == place and place.removeprefix("spec.").count("."):
            # The whole path is always there, by its default, but for its last part.
            _keep_while_running(spec, place.removeprefix("spec."))
        elif name != place:
            given = f"regions.map(r, r.pools.map(p, has(p.{name}) ? [dyn(p.{name})] : []))"
            rule = f"{_SUSPENDED} || self.{given} == oldSelf.{given}"
            add_rules(spec, [{"rule": rule, "message": f"{name} of a pool {WHILE_RUNNING}", "fieldPath": ".regions"}])


def _keep_while_running(node: Schema, name: str) -> None:
    same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    rule = {"rule": f"{_SUSPENDED} || {same}", "message": WHILE_RUNNING, "fieldPath": f".{name}"}
    add_rules(node, [rule])


def _keep_items(field: Schema, place: str) -> None:
    keys: list[str] = field["x-kubernetes-list-map-keys"]
    (key,) = keys
    # In order: an item's position decides which shards of the data its learners read.
    rule = f"self.map(item, item.{key}) == oldSelf.map(item, item.{key})"
    message = "items cannot be added, removed, renamed or reordered once the job exists"
    add_rules(field, [{"rule": rule, "message": message}])
    add_immutability(field["items"], place, key)


def _rule(expression: str, name: str = "") -> dict[str, Any]:
    rule = {"rule": expression, "message": MESSAGE}
    return {**rule, "fieldPath": f".{name}"} if name else rule
