"""CEL transition rules that make fields of an existing job immutable: all fields except those listed here.

A field that is added to the models is immutable until it is listed in ``MUTABLE``, or in ``MUTABLE_SUSPENDED``, which
has what the operator can change while no pod runs, or in ``MUTABLE_UNMADE``, which has what the claim is made of. A
block in which nothing may change has one rule. Regions and pools can be added and removed; the API server compares
those of one name. But a rule on a pool cannot see whether the job is suspended, and to find each pool's earlier self in
a rule on the spec would cost more than a rule may. So those fields have two rules that compare lists: on a region, of
the pools that stay, if it does not keep all; on the spec, of all regions that stay, if they keep all pools.
"""

from diloco.spec.base import INT_OR_STRING, MAP_KEYS
from diloco.spec.crd.schema import add_rules, at, fields
from diloco.spec.words import Schema

MUTABLE = frozenset(
    {
        "spec.suspend",
        "spec.activeDeadlineSeconds",
        "spec.training.tokens",
        "spec.ttlSecondsAfterFinished",
        "spec.failurePolicy.lostPods.action",
        "spec.failurePolicy.lostPods.afterSeconds",
        "spec.syncer.resources",
        "spec.syncer.env",
        "spec.syncer.podTemplate",
        "spec.syncer.storage.adoptRetained",
        "spec.syncer.expose.type",
        "spec.syncer.expose.annotations",
        "spec.syncer.expose.host",
        "spec.syncer.expose.port",
        "spec.syncer.expose.sourceRanges",
        "spec.regions[].pools[].learners",
        "spec.regions[].pools[].minimumLearners",
        "spec.regions[].pools[].excludedIndices",
        "spec.regions[].pools[].speed",
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
        "spec.imagePullSecrets",
        "spec.initFrom",
        "spec.syncer.image",
        "spec.syncer.backup",
        "spec.regions[].pools[].image",
        "spec.regions[].pools[].env",
        "spec.regions[].pools[].podTemplate",
    }
)
"""Fields that can be changed while the job is suspended, or in the update that suspends or resumes it."""

MUTABLE_UNMADE = frozenset(f"spec.syncer.storage.{name}" for name in ("size", "className", "accessMode"))
"""Fields that can be changed until the syncer's claim exists: a quota may not allow the one that is asked for."""

LISTED = MUTABLE | MUTABLE_SUSPENDED | MUTABLE_UNMADE
MESSAGE = "cannot be changed once the job exists; a job of another name may have another value"
WHILE_RUNNING = "cannot be changed while the job runs; suspend it (spec.suspend: true), then change it"
TOGETHER = "of a pool cannot be changed in the update that adds, removes or reorders pools; make two"
_OF_POOL = "spec.regions[].pools[]."
_UID = "self.status.syncer.claimUid"
_NO_CLAIM = f"!has(self.status) || !has(self.status.syncer) || !has({_UID}) || {_UID} == ''"
_POOLS = "{0}.pools.filter(p, p.name in {1}.pools.map(q, q.name)).map(p, {2})"
"""What ``{2}`` is of the pools of ``{0}`` that are in ``{1}`` too."""


def add_immutability(job: Schema) -> None:
    """Add the rules to the structural schema of a job."""
    spec = at(job, "spec")
    _keep_fields(spec, "spec")
    for field in sorted(MUTABLE_UNMADE):
        rule = f"{_NO_CLAIM} || {_same(field)}"
        add_rules(job, [{"rule": rule, "message": MESSAGE, "fieldPath": f".{field}"}])
    for place in sorted(MUTABLE_SUSPENDED):
        name, of_pool = place.removeprefix(_OF_POOL), place.startswith(_OF_POOL)
        if of_pool:
            given, names = f"has(p.{name}) ? dyn(p.{name}) : dyn(0)", "pools.map(p, p.name)"
            sides = (("self", "oldSelf"), ("oldSelf", "self"))
            of_both = f"r.pools.map(p, {given}) == o.pools.map(p, {given})"
            pairs = f"r.name != o.name || r.pools.size() != o.pools.size() || {of_both}"
            same = f"self.regions.all(r, oldSelf.regions.all(o, {pairs}))"
            message, field = f"{name} of a pool {WHILE_RUNNING}", "regions"
            kept = " == ".join(_POOLS.format(*side, given) for side in sides)
            together = {"rule": f"self.{names} == oldSelf.{names} || {kept}", "message": f"{name} {TOGETHER}"}
            add_rules(at(spec, "regions[]"), [together | {"fieldPath": ".pools"}])
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
        if name == key or place in LISTED:
            continue
        if not any(one.startswith((f"{place}.", f"{place}[]")) for one in LISTED):
            if always:
                add_rules(field, [{"rule": "self == oldSelf", "message": MESSAGE}])
            else:
                # A rule on a field that was or is absent is not evaluated, so the rule is on its parent.
                rule = _same(name, in_lists=INT_OR_STRING in field)
                add_rules(node, [{"rule": rule, "message": MESSAGE, "fieldPath": f".{name}"}])
        elif MAP_KEYS in field:
            (item_key,) = field[MAP_KEYS]
            _keep_fields(field["items"], f"{place}[]", item_key)
        else:
            if not always:
                rule = f"has(self.{name}) == has(oldSelf.{name})"
                add_rules(node, [{"rule": rule, "message": MESSAGE, "fieldPath": f".{name}"}])
            _keep_fields(field, place)


def _same(field: str, *, in_lists: bool = False) -> str:
    """That ``field`` of an object is as it was; its whole path but for the last part is always there.

    ``in_lists`` compares lists that have it alone. In Kubernetes 1.33 a field of numbers and words counts as 3 MB
    long, whatever its ``maxLength``, and a comparison in each pool costs more than all rules may.
    """
    now, before = (f"[{one}.{field}]" if in_lists else f"{one}.{field}" for one in ("self", "oldSelf"))
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {now} == {before})"
