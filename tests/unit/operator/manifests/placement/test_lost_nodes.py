from typing import Any

import pytest

from diloco_operator.manifests.placement.lost_nodes import LOST_NODE_SECONDS, TAINTS, leaves_lost_nodes
from tests.support.made_objects import learner_pod, made, templates, with_pool

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
    once = leaves_lost_nodes({"containers": []})
    assert leaves_lost_nodes(once) == once


def test_the_syncer_leaves_a_lost_node_as_soon_as_a_learner() -> None:
    found = templates(made(with_pool({})))
    assert {tuple(map(str, one["spec"]["tolerations"])) for one in found.values()} == {tuple(map(str, OURS))}
