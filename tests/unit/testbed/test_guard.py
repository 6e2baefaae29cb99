"""The test bed acts only on its own clusters: it checks the name, the kubeconfig and the nodes."""

from typing import Any

import pytest

from testbed.kind.cache import Cache, ClusterRecord, State
from testbed.kind.guard import (
    IDENTITY_LABEL,
    NotOursError,
    check_kubeconfig,
    check_name,
    check_nodes,
    check_ours,
    check_record,
)

RECORD = ClusterRecord("a1b2", complete=True)


def kubeconfig(context: str = "kind-diloco-test", server: str = "https://127.0.0.1:40000") -> dict[str, Any]:
    return {
        "contexts": [{"name": context}],
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "current-context": context,
    }


@pytest.mark.parametrize(
    "name", ["production", "kind", "diloco-", "diloco-A", "diloco-a_b", "diloco-a-", "my-diloco-a"]
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(NotOursError, match="is called diloco-NAME"):
        check_name(name)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (kubeconfig(context="production"), "its contexts are"),
        (kubeconfig(context="kind-other"), "its contexts are"),
        (kubeconfig(server="https://203.0.113.7:6443"), "is not on this machine"),
        (kubeconfig() | {"contexts": [{"name": "kind-diloco-test"}, {"name": "production"}]}, "its contexts are"),
        (kubeconfig() | {"current-context": "production"}, "its contexts are"),
        ({}, "its contexts are"),
    ],
    ids=["context", "other kind cluster", "server", "second context", "current context", "empty"],
)
def test_a_kubeconfig_that_leads_elsewhere_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(NotOursError, match=complaint):
        check_kubeconfig(config, "diloco-test")


@pytest.mark.parametrize("labels", [[{}], [{IDENTITY_LABEL: "other"}], [{IDENTITY_LABEL: "a1b2"}, {}], []])
def test_nodes_that_it_did_not_make_are_refused(labels: list[dict[str, str]]) -> None:
    nodes = {"items": [{"metadata": {"labels": each}} for each in labels]}
    with pytest.raises(NotOursError, match="not those that this test bed made"):
        check_nodes(nodes, "diloco-test", RECORD)


def test_a_cluster_that_it_made_is_accepted() -> None:
    check_name("diloco-test")
    check_kubeconfig(kubeconfig(), "diloco-test")
    check_nodes({"items": [{"metadata": {"labels": {IDENTITY_LABEL: "a1b2"}}}] * 2}, "diloco-test", RECORD)
    check_record("diloco-test", {"diloco-test": RECORD}, there=True)


def test_a_cluster_of_its_name_that_somebody_else_made_is_refused() -> None:
    with pytest.raises(NotOursError, match="was not made by this test bed"):
        check_record("diloco-test", {}, there=True)
    check_record("diloco-test", {}, there=False)


@pytest.mark.parametrize("state", [State(), State({"diloco-test": ClusterRecord("a1b2")})], ids=["none", "unfinished"])
def test_a_cluster_that_is_not_up_is_not_attached_to(cache: Cache, state: State) -> None:
    cache.write(state)
    with pytest.raises(NotOursError, match="make kind-up"):
        check_ours(cache, "diloco-test")
