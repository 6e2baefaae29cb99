"""How single pods of a StatefulSet are held back: by a scheduling gate that a template has while they are created.

A StatefulSet has one template and no gaps. So the gate is in its template only while the pods to hold are created, and
the update strategy is OnDelete as long as pods are held, so that no other pod is replaced because of it.
"""

from typing import Any, Final

from diloco_operator.manifests.inputs import Manifest

GATE: Final = "diloco.dev/held"
"""The scheduling gate: the scheduler ignores a pod that has it, and no node reserves anything for it."""
_GATES: Final = "schedulingGates"


def held_back(one: Manifest, *, gated: bool) -> Manifest:
    """A StatefulSet whose pods are only replaced when they are deleted; ``gated``: what it creates is held back."""
    spec = {**one["spec"], "updateStrategy": {"type": "OnDelete"}}
    if gated:
        template = without_gate(spec["template"])
        gates = [*(template["spec"].get(_GATES) or ()), {"name": GATE}]
        spec["template"] = {**template, "spec": {**template["spec"], _GATES: gates}}
    return {**one, "spec": spec}


def without_gate(template: Manifest) -> Manifest:
    """A pod template without the gate."""
    pod = template["spec"]
    if not has_gate(pod):
        return template
    others = [gate for gate in pod[_GATES] if gate.get("name") != GATE]
    rest = {key: value for key, value in pod.items() if key != _GATES}
    return {**template, "spec": {**rest, **({_GATES: others} if others else {})}}


def has_gate(pod: Any) -> bool:
    """Whether a pod's spec has the gate."""
    gates = pod.get(_GATES) if isinstance(pod, dict) else None
    return isinstance(gates, list) and any(isinstance(one, dict) and one.get("name") == GATE for one in gates)


def left_over(desired: Manifest, live: Manifest) -> bool:
    """Whether ``live`` still holds pods back, although ``desired`` does not.

    Server-side apply does not remove what was set by a patch. That is how OnDelete has to be set, because the API
    server fills in the default strategy's own fields, which belong to nobody.
    """
    return any(holds(live) and not holds(desired) for holds in (is_on_delete, creates_gated))


def is_held_back(live: Manifest | None) -> bool:
    """Whether a set is as it is while pods are held back."""
    return live is not None and (is_on_delete(live) or creates_gated(live))


def is_on_delete(live: Manifest) -> bool:
    """Whether its controller replaces no pod on its own account."""
    strategy = (live.get("spec") or {}).get("updateStrategy")
    return isinstance(strategy, dict) and strategy.get("type") == "OnDelete"


def creates_gated(live: Manifest) -> bool:
    """Whether the pods that it creates are held back."""
    template = (live.get("spec") or {}).get("template")
    return isinstance(template, dict) and has_gate(template.get("spec"))
