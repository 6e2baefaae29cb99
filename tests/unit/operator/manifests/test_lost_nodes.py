"""How long learners' pods stay on a node that does not respond, and what a user can say about it."""

from typing import Any

import pytest

from diloco_operator.manifests.learners import LOST_NODE_SECONDS
from diloco_operator.manifests.lost_nodes import TAINTS, leaves_lost_nodes
from tests.support.made_objects import made, templates, with_pool

NOT_READY, UNREACHABLE = TAINTS
OURS = [
    {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
    for taint in TAINTS
]


def tolerations(**pool: Any) -> list[Any]:
    found: list[Any] = templates(made(with_pool(pool)))["StatefulSet/small--east-a"]["spec"]["tolerations"]
    return found


def test_a_learner_leaves_a_lost_node_after_half_a_minute() -> None:
    assert tolerations() == OURS
    assert LOST_NODE_SECONDS == 30


def test_the_syncers_pod_is_left_to_the_default_of_kubernetes() -> None:
    assert "tolerations" not in templates(made(with_pool({})))["Deployment/small-syncer"]["spec"]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"key": "gpu", "operator": "Exists"}, OURS),
        ({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 900}, OURS[1:]),
        ({"key": UNREACHABLE, "operator": "Exists"}, OURS[:1]),
        ({"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}, OURS),
        ({"operator": "Exists"}, []),
        ({"operator": "Exists", "effect": "NoSchedule"}, OURS),
    ],
    ids=["another key", "longer", "for ever", "another effect", "everything", "everything but NoExecute"],
)
def test_a_toleration_of_the_users_for_a_key_stands(given: dict[str, Any], added: list[Any]) -> None:
    assert tolerations(tolerations=[given]) == [given, *added]
    assert tolerations(podTemplate={"spec": {"tolerations": [given]}}) == [given, *added]


def test_adding_them_twice_changes_nothing() -> None:
    once = leaves_lost_nodes({"containers": []}, 30)
    assert leaves_lost_nodes(once, 30) == once
