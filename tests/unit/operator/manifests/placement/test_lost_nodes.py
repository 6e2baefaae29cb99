from typing import Any

import pytest

from diloco_operator.manifests.learners import LOST_NODE_SECONDS
from diloco_operator.manifests.placement.lost_nodes import TAINTS, leaves_lost_nodes
from tests.support.made_objects import learner_pod, with_pool

NOT_READY, UNREACHABLE = TAINTS
OURS = [
    {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
    for taint in TAINTS
]


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
    pod = learner_pod(with_pool({"podTemplate": {"spec": {"tolerations": [given]}}}))
    assert pod["tolerations"] == [given, *added]


def test_adding_them_twice_changes_nothing() -> None:
    once = leaves_lost_nodes({"containers": []}, 30)
    assert leaves_lost_nodes(once, 30) == once
