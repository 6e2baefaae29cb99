"""Learners prefer to be apart, and away from the syncer; a user's own words about it stand."""

from typing import Any

import pytest

from diloco_operator.manifests.spread import relaxed, restored
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


def anti_affinity() -> list[dict[str, Any]]:
    """(topology, selector) of each preferred term."""
    terms = pod()["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return [one["podAffinityTerm"] for one in terms]


def test_learners_prefer_nodes_with_fewer_of_the_job() -> None:
    (one,) = pod()["topologySpreadConstraints"]
    assert one["topologyKey"] == "kubernetes.io/hostname"
    assert (one["maxSkew"], one["whenUnsatisfiable"]) == (1, "ScheduleAnyway")
    labels = templates(made(with_pool({})))[SET]["metadata"]["labels"]
    assert one["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "diloco.dev/pool" not in one["labelSelector"]["matchLabels"]


def test_learners_prefer_zones_with_fewer_of_the_job() -> None:
    _, zone = anti_affinity()
    assert zone["topologyKey"] == "topology.kubernetes.io/zone"
    labels = templates(made(with_pool({})))[SET]["metadata"]["labels"]
    assert zone["labelSelector"]["matchLabels"].items() <= labels.items()
    assert "diloco.dev/pool" not in zone["labelSelector"]["matchLabels"]
    avoids_none = {"key": "diloco.dev/revision", "operator": "DoesNotExist"}
    assert zone["labelSelector"]["matchExpressions"] == [avoids_none]


def test_learners_prefer_nodes_without_the_syncer_of_their_job() -> None:
    preferred, _ = anti_affinity()
    assert preferred["topologyKey"] == "kubernetes.io/hostname"
    its = templates(made(with_pool({})))
    selector = preferred["labelSelector"]["matchLabels"]
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


def test_the_syncer_counts_for_more_than_many_learners_in_its_zone() -> None:
    terms = pod()["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [one["weight"] for one in terms] == [100, 1]


def test_for_a_while_a_preference_for_nodes_outweighs_ours() -> None:
    found = relaxed(pod(), "small")
    terms = found["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [one["podAffinityTerm"]["namespaces"] for one in terms] == [["diloco-relaxed"]] * 2
    assert [one["maxSkew"] for one in found["topologySpreadConstraints"]] == [1000]
    assert restored(found, "small") == pod()


def test_so_it_does_in_templates_of_earlier_versions() -> None:
    (by_host,), (syncer, _) = pod()["topologySpreadConstraints"], anti_affinity()
    by_zone = by_host | {"topologyKey": "topology.kubernetes.io/zone"}
    terms = [{"weight": 100, "podAffinityTerm": syncer}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    earlier = {"affinity": affinity, "topologySpreadConstraints": [by_host, by_zone]}
    found = relaxed(earlier, "small")
    assert [one["maxSkew"] for one in found["topologySpreadConstraints"]] == [1000, 1000]
    assert restored(found, "small") == earlier


def test_what_a_user_says_stays_as_strong_as_it_is() -> None:
    theirs = [{"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {}}}]
    own = pod()["topologySpreadConstraints"][0] | {"maxSkew": 5, "nodeAffinityPolicy": "Ignore"}
    specs: list[dict[str, Any]] = [
        {"affinity": NODE_AFFINITY | APART, "topologySpreadConstraints": BY_RACK},
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": theirs}}},
        {"topologySpreadConstraints": [own, {**own, "topologyKey": "topology.kubernetes.io/zone"}]},
        {"containers": []},
    ]
    for spec in specs:
        assert relaxed(spec, "small") == spec
        assert restored(spec, "small") == spec
    assert relaxed(pod(), "another job") == pod()
