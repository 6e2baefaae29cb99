"""Learners prefer to be apart, and away from the syncer; a user's own words about it stand."""

from typing import Any

import pytest

from tests.support.made_objects import made, templates, with_pool

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
NODE_AFFINITY: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}
APART: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
BY_RACK = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]


def pod(**pool: Any) -> dict[str, Any]:
    found: dict[str, Any] = templates(made(with_pool(pool)))[SET]["spec"]
    return found


def test_learners_prefer_nodes_and_zones_with_fewer_of_the_job() -> None:
    constraints = pod()["topologySpreadConstraints"]
    keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert [one["topologyKey"] for one in constraints] == keys
    labels = templates(made(with_pool({})))[SET]["metadata"]["labels"]
    for one in constraints:
        assert (one["maxSkew"], one["whenUnsatisfiable"]) == (1, "ScheduleAnyway")
        assert one["labelSelector"]["matchLabels"].items() <= labels.items()
        assert "diloco.dev/pool" not in one["labelSelector"]["matchLabels"]


def test_learners_prefer_nodes_without_the_syncer_of_their_job() -> None:
    (preferred,) = pod()["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    its = templates(made(with_pool({})))
    selector = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selector.items() <= its[DEPLOYMENT]["metadata"]["labels"].items()
    assert not selector.items() <= its[SET]["metadata"]["labels"].items()
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod()["affinity"]["podAntiAffinity"]


@pytest.mark.parametrize("where", ["pool", "template"])
def test_other_affinity_of_the_users_stands_beside_ours(where: str) -> None:
    given = {"affinity": NODE_AFFINITY}
    found = pod(**given) if where == "pool" else pod(podTemplate={"spec": given})
    assert found["affinity"] == {**NODE_AFFINITY, "podAntiAffinity": pod()["affinity"]["podAntiAffinity"]}


@pytest.mark.parametrize("where", ["pool", "template"])
def test_a_users_anti_affinity_stands_instead_of_ours(where: str) -> None:
    given = {"affinity": APART}
    assert (pod(**given) if where == "pool" else pod(podTemplate={"spec": given}))["affinity"] == APART


def test_a_users_spread_stands_instead_of_ours() -> None:
    assert pod(podTemplate={"spec": {"topologySpreadConstraints": BY_RACK}})["topologySpreadConstraints"] == BY_RACK


def test_the_syncers_pod_is_not_spread() -> None:
    assert not {"affinity", "topologySpreadConstraints"} & templates(made(with_pool({})))[DEPLOYMENT]["spec"].keys()
