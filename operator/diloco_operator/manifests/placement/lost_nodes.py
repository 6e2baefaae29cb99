"""How soon Kubernetes ends a pod whose node no longer responds: the tolerations that say so.

Kubernetes taints such a node and ends each pod there once its toleration has run out. To a pod that says nothing the
API server adds tolerations of 300 seconds. Others train on without a learner, and its place in the data waits for it;
without the syncer, all learners soon wait. So their replacements should not wait as long.
"""

from typing import Final

from diloco_operator.manifests.inputs import Manifest

TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Keys of the taints of a node that does not respond."""
LOST_NODE_SECONDS: Final = 30
"""How long a pod stays on a node that is not ready or out of reach (ours)."""
_EFFECT: Final = "NoExecute"


def leaves_lost_nodes(pod: Manifest) -> Manifest:
    """A pod's spec with a toleration of `LOST_NODE_SECONDS` for each of `TAINTS` that it does not tolerate already."""
    given = pod.get("tolerations", [])
    ours = [
        {"key": taint, "operator": "Exists", "effect": _EFFECT, "tolerationSeconds": LOST_NODE_SECONDS}
        for taint in TAINTS
        if not any(_covers(one, taint) for one in given)
    ]
    return {**pod, "tolerations": [*given, *ours]} if ours else pod


def _covers(toleration: Manifest, taint: str) -> bool:
    """Whether it speaks of that taint, as the API server judges it (admission plugin DefaultTolerationSeconds)."""
    return (toleration.get("key") or taint) == taint and (toleration.get("effect") or _EFFECT) == _EFFECT
