"""What of a job cannot be changed once it exists, as CEL transition rules: all but what is listed here.

A field that is added to the models is immutable until it stands in ``MUTABLE``. Each leaf has a rule of its own, so
that the API server's message names it. Must not know the models.
"""

from typing import Any

from diloco.spec.crd_schema import add_rules, fields
from diloco.spec.words import Schema

MUTABLE = frozenset(
    {
        "spec.suspend",
        "spec.activeDeadlineSeconds",
        "spec.ttlSecondsAfterFinished",
        "spec.syncer.resources",
        "spec.regions[].pools[].learners",
        "spec.regions[].pools[].resources",
    }
)
"""What the operator can carry out while the job runs."""

MESSAGE = "cannot be changed once the job exists; delete the job and create it anew"


def add_immutability(node: Schema, path: str, key: str = "") -> None:
    """Add rules to ``node``, the structural schema of the object at ``path``, and to what is in it.

    ``key`` is the field that tells it from others in a list: the same before and after by itself.
    """
    for name, field, always in fields(node):
        place = f"{path}.{name}"
        if place in MUTABLE or name == key:
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
            # A rule at a field that was or is absent is not evaluated: its parent has to look.
            same = f"!has(self.{name}) || self.{name} == oldSelf.{name}"
            add_rules(node, [_rule(f"has(self.{name}) == has(oldSelf.{name}) && ({same})", name)])


def _keep_items(field: Schema, place: str) -> None:
    keys: list[str] = field["x-kubernetes-list-map-keys"]
    (key,) = keys
    # In order: an item's place among the others decides which shards of the data its learners read.
    rule = f"self.map(item, item.{key}) == oldSelf.map(item, item.{key})"
    message = (
        "items cannot be added, removed, renamed or reordered once the job exists; delete the job and create it anew"
    )
    add_rules(field, [{"rule": rule, "message": message}])
    add_immutability(field["items"], place, key)


def _rule(expression: str, name: str = "") -> dict[str, Any]:
    rule = {"rule": expression, "message": MESSAGE}
    return {**rule, "fieldPath": f".{name}"} if name else rule
