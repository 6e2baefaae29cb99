"""How soon Kubernetes ends a pod whose node no longer responds: the tolerations that say so.

Kubernetes taints such a node and ends each pod there once its toleration has run out. To a pod that says nothing the
API server adds tolerations of 300 seconds. Others train on without a learner, and its place in the data waits for it,
so its replacement should not wait as long.
"""

from typing import Final

from diloco_operator.manifests.inputs import Manifest

TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Keys of the taints of a node that does not respond."""
_EFFECT: Final = "NoExecute"


def leaves_lost_nodes(pod: Manifest, seconds: int) -> Manifest:
    """A pod's spec with a toleration of ``seconds`` for each of `TAINTS` that it does not tolerate already."""
    given = pod.get("tolerations", [])
    ours = [
        {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": seconds}
        for taint in TAINTS
        if not any(_covers(one, taint) for one in given)
    ]
    return {**pod, "tolerations": [*given, *ours]} if ours else pod


def _covers(toleration: Manifest, taint: str) -> bool:
    """Whether it speaks of that taint, as the API server judges it (admission plugin DefaultTolerationSeconds)."""
    return (toleration.get("key") or taint) == taint and (toleration.get("effect") or _EFFECT) == _EFFECT
