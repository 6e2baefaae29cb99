"""The part of a template that has pods avoid nodes: added, read, and taken away again."""

import copy
from typing import Any

import pytest

from diloco_operator.decide.drift import differs, marked
from diloco_operator.manifests.avoidance import affinity_of, avoided_by, avoiding, base_revision, without_avoidance
from diloco_operator.manifests.holds import held_back, is_held_back, left_over
from diloco_operator.manifests.spread import relaxed, restored
from diloco_operator.observe.pods import slim_pod
from tests.support.made_objects import made, with_pool

THEIRS = {
    "weight": 100,
    "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}]},
}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def a_set(affinity: dict[str, Any] | None = None) -> dict[str, Any]:
    pool = {} if affinity is None else {"podTemplate": {"spec": {"affinity": affinity}}}
    return next(one for one in made(with_pool(pool)) if one["kind"] == "StatefulSet")


def by_node(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = item["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    return found


AFFINITIES: dict[str, dict[str, Any] | None] = {
    "ours": None,
    "a preference": {"nodeAffinity": {PREFERRED: [THEIRS]}},
    "a condition": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
            }
        }
    },
    "pods": {"podAntiAffinity": {}},
}


@pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)
def test_it_is_added_beside_the_users_and_taken_away_to_the_byte(affinity: dict[str, Any] | None) -> None:
    item = a_set(affinity)
    before = copy.deepcopy(item)
    found = avoiding(item, ("n1", "n2"), "r-1")
    assert item == before
    template = found["spec"]["template"]
    assert (avoided_by(template), base_revision(template)) == (("n1", "n2"), "r-1")
    assert without_avoidance(template) == item["spec"]["template"]
    assert by_node(found)[PREFERRED][1:] == ((affinity or {}).get("nodeAffinity") or {}).get(PREFERRED, [])
    assert found["spec"]["selector"] == item["spec"]["selector"]


def test_nothing_else_of_ours_draws_pods_to_a_node_to_avoid() -> None:
    spec = avoiding(a_set(), ("n1",), "r-1")["spec"]["template"]["spec"]
    assert spec == {**relaxed(a_set()["spec"]["template"]["spec"], "small"), "affinity": spec["affinity"]}
    assert [one["maxSkew"] for one in spec["topologySpreadConstraints"]] == [1000]


def test_a_template_of_an_earlier_version_that_avoids_nodes_is_read() -> None:
    template = avoiding(a_set(), ("n1",), "r-1")["spec"]["template"]
    earlier = {**template, "spec": restored(template["spec"], "small")}
    assert avoided_by(earlier) == ("n1",)
    assert without_avoidance(earlier) == a_set()["spec"]["template"]


def test_one_term_speaks_of_all_nodes() -> None:
    (term,) = by_node(avoiding(a_set(), ("n1", "n2"), "r-1"))[PREFERRED]
    assert term == {
        "weight": 100,
        "preference": {
            "matchFields": [
                {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]},
                {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]},
            ]
        },
    }


def test_what_a_user_prefers_is_not_taken_for_ours() -> None:
    template = a_set({"nodeAffinity": {PREFERRED: [THEIRS]}})["spec"]["template"]
    assert avoided_by(template) == ()
    assert without_avoidance(template) == template


def test_a_pod_that_was_listed_still_says_what_it_avoids() -> None:
    template = avoiding(a_set(), ("n1",), "r-1")["spec"]["template"]
    pod = {**template, "metadata": {**template["metadata"], "name": "p-0", "uid": "1"}, "status": {}}
    slim = slim_pod(pod)
    assert (avoided_by(slim), base_revision(slim)) == (("n1",), "r-1")
    assert slim["spec"]["affinity"] == affinity_of(("n1",))
    assert "affinity" not in slim_pod({**pod, "metadata": {"name": "p-0", "uid": "1"}})["spec"]


def test_what_is_left_of_it_is_a_difference() -> None:
    item = marked(a_set())
    other = marked(held_back(avoiding(a_set(), ("n1",), "r-1"), gated=False))
    live = copy.deepcopy(other)
    assert differs(other, live) is None
    assert differs(marked(held_back(avoiding(a_set(), ("n2",), "r-1"), gated=False)), live)
    assert left_over(item, live)
    live["spec"].pop("updateStrategy")
    assert is_held_back(live)
    assert left_over(item, live)
