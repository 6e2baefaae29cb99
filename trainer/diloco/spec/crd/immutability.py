"""CEL transition rules that make fields of an existing job immutable: all fields except those listed here.

A field that is added to the models is immutable until it is listed in ``MUTABLE``, or in ``MUTABLE_SUSPENDED``, which
has what the operator can change while no pod runs. A block in which nothing may change has one rule. A rule on a pool
cannot see whether the job is suspended, so the rules for those are on the spec and compare the field over all pools.
"""

from diloco.spec.base import MAP_KEYS
from diloco.spec.crd.schema import add_rules, fields
from diloco.spec.words import Schema

MUTABLE = frozenset(
    {
        "spec.suspend",
        "spec.activeDeadlineSeconds",
        "spec.ttlSecondsAfterFinished",
        "spec.failurePolicy.lostPods.action",
        "spec.failurePolicy.lostPods.afterSeconds",
        "spec.syncer.resources",
        "spec.syncer.env",
        "spec.syncer.podTemplate",
        "spec.syncer.storage.adoptRetained",
        "spec.syncer.expose.host",
        "spec.syncer.expose.port",
        "spec.syncer.expose.sourceRanges",
        "spec.regions[].pools[].learners",
        "spec.regions[].pools[].minimumLearners",
        "spec.regions[].pools[].excludedIndices",
        "spec.regions[].pools[].fallbackAfterSeconds",
        "spec.regions[].pools[].certificatesNotBefore",
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
        "spec.syncer.image",
        "spec.syncer.backup",
        "spec.regions[].pools[].image",
        "spec.regions[].pools[].env",
        "spec.regions[].pools[].podTemplate",
    }
)
"""Fields that can be changed while the job is suspended, or in the update that suspends or resumes it."""

MESSAGE = "cannot be changed once the job exists; a job of another name may have another value"
WHILE_RUNNING = "cannot be changed while the job runs; suspend it (spec.suspend: true), then change it"
_OF_POOL = "spec.regions[].pools[]."


def add_immutability(spec: Schema) -> None:
    """Add the rules to ``spec``, the structural schema of a job's spec."""
    _keep_fields(spec, "spec")
    for place in sorted(MUTABLE_SUSPENDED):
        name, of_pool = place.removeprefix(_OF_POOL), place.startswith(_OF_POOL)
        if of_pool:
            given = f"regions.map(r, r.pools.map(p, has(p.{name}) ? [dyn(p.{name})] : []))"
            same, message, field = f"self.{given} == oldSelf.{given}", f"{name} of a pool {WHILE_RUNNING}", "regions"
        else:
            field = place.removeprefix("spec.")
            same, message = _same(field), WHILE_RUNNING
        rule = f"self.suspend || oldSelf.suspend || {same}"
        add_rules(spec, [{"rule": rule, "message": message, "fieldPath": f".{field}"}])


def _keep_fields(node: Schema, path: str, key: str = "") -> None:
    """Add rules to ``node``, the object at ``path``, and to its fields.

    ``key`` is the field that identifies it in a list, which is the same before and after an update anyway.
    """
    for name, field, always in fields(node):
        place = f"{path}.{name}"
        if name == key or place in MUTABLE | MUTABLE_SUSPENDED:
            continue
        if not any(one.startswith((f"{place}.", f"{place}[]")) for one in MUTABLE | MUTABLE_SUSPENDED):
            if always:
                add_rules(field, [{"rule": "self == oldSelf", "message": MESSAGE}])
            else:
                # A rule on a field that was or is absent is not evaluated, so the rule is on its parent.
                add_rules(node, [{"rule": _same(name), "message": MESSAGE, "fieldPath": f".{name}"}])
        elif MAP_KEYS in field:
            _keep_items(field, f"{place}[]")
        else:
            if not always:
                rule = f"has(self.{name}) == has(oldSelf.{name})"
                add_rules(node, [{"rule": rule, "message": MESSAGE, "fieldPath": f".{name}"}])
            _keep_fields(field, place)


def _keep_items(field: Schema, place: str) -> None:
    (key,) = field[MAP_KEYS]
    # In order: an item's position decides which shards of the data its learners read.
    rule = f"self.map(item, item.{key}) == oldSelf.map(item, item.{key})"
    message = "items cannot be added, removed, renamed or reordered once the job exists"
    add_rules(field, [{"rule": rule, "message": message}])
    _keep_fields(field["items"], place, key)


def _same(field: str) -> str:
    """That ``field`` of an object is as it was; its whole path but for the last part is always there."""
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
