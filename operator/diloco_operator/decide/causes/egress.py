"""Which NetworkPolicies restrict what a pod may connect to, as in a namespace that denies it by default. Pure.

Whether they let it reach DNS and the syncer is not worked out: only what enforces them knows all addresses.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from diloco.spec.words import shortlist
from diloco_operator.decide.observed import Object
from diloco_operator.objects import items_of, labels_of, mapping, metadata_of


def restricted(pod: Object, policies: Iterable[Object]) -> str:
    """What to check about the policies that a learner's pod has; empty: it has none.

    ``policies``: those of its namespace that are about egress.
    """
    names = sorted(str(metadata_of(one).get("name")) for one in policies if _selects(one, labels_of(pod)))
    if not names:
        return ""
    verb = "NetworkPolicy {} restricts" if len(names) == 1 else "NetworkPolicies {} restrict"
    return f"{verb.format(shortlist(names))} what it may connect to, and it needs DNS and the syncer"


def _selects(policy: Object, labels: Mapping[str, Any]) -> bool:
    selector = mapping(mapping(policy.get("spec")).get("podSelector"))
    wanted = mapping(selector.get("matchLabels"))
    return wanted.items() <= labels.items() and all(
        _meets(mapping(one), labels) for one in items_of(selector.get("matchExpressions"))
    )


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """LabelSelectorRequirement of meta/v1. A key that is missing is not in any values."""
    key, values = str(requirement.get("key")), items_of(requirement.get("values"))
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
    return key not in labels
