"""How single pods of a StatefulSet are held back: by a scheduling gate that a template has while they are created.

A StatefulSet has one template and no gaps. So the gate is in its template only while the pods to hold are created. No
other pod is replaced because of it, as the operator replaces pods, and the set's controller none (OnDelete).
"""

from typing import Any, Final

from diloco_operator.manifests.inputs import Manifest

GATE: Final = "diloco.dev/held"
"""The scheduling gate: the scheduler ignores a pod that has it, and no node reserves anything for it."""
_GATES: Final = "schedulingGates"


def held_back(one: Manifest) -> Manifest:
    """A StatefulSet that holds back what it creates."""
    template = without_gate(one["spec"]["template"])
    gates = [*(template["spec"].get(_GATES) or ()), {"name": GATE}]
    gated = {**template, "spec": {**template["spec"], _GATES: gates}}
    return {**one, "spec": {**one["spec"], "template": gated}}


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


def creates_gated(live: Manifest) -> bool:
    """Whether the pods that a set creates are held back."""
    template = (live.get("spec") or {}).get("template")
    return isinstance(template, dict) and has_gate(template.get("spec"))
