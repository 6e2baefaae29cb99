"""Permissions: no wildcards, and only in namespaces whose jobs are reconciled.

That each rule is needed, and that they are enough, is seen at a real API server (`integration/operator`).
"""

from collections.abc import Iterable
from typing import Any

import pytest

from diloco_operator.api_server import kinds
from diloco_operator.api_server.kinds import Kind
from diloco_operator.clusters.rules import RULES
from diloco_operator.options import JOBS_LEASE
from tests.support.rendered_chart import NAMESPACE, Render, Rendered

Rights = dict[tuple[str, str], set[str]]
LEASES = ("coordination.k8s.io", "leases")


def rights(rules: Iterable[dict[str, Any]]) -> Rights:
    """Verbs by (group, resource)."""
    found: Rights = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def of_kind(kind: Kind) -> tuple[str, str]:
    return (kind.group, kind.plural)


def operators_role(rendered: Rendered) -> dict[str, Any]:
    (role,) = [one for one in rendered.of_kind("ClusterRole") if not is_for_people(one)]
    return role


def is_for_people(role: dict[str, Any]) -> bool:
    return any(label.startswith("rbac.authorization.k8s.io/aggregate-to-") for label in role["metadata"]["labels"])


def test_the_operator_needs_the_same_verbs_in_a_remote_namespace(plain: Rendered) -> None:
    # The same requests go to both; rules about one name, and claims, which are made at home only, are the exceptions.
    rules = [rule for rule in RULES if rule.only is None]
    remote = rights({"apiGroups": [one.group], "resources": [one.resource], "verbs": one.verbs} for one in rules)
    home = rights(operators_role(plain)["rules"])
    assert remote.pop(of_kind(kinds.CLAIM)) == {"list"}
    assert remote == {resource: home.get(resource) for resource in remote}


def test_named_namespaces_get_the_same_rights_in_roles_not_a_cluster_role(plain: Rendered, render: Render) -> None:
    rendered = render(watchNamespaces=["b", "a", "b"], rbac={"aggregate": False})
    assert rendered.of_kind("ClusterRole") == rendered.of_kind("ClusterRoleBinding") == []
    roles = [one for one in rendered.of_kind("Role") if one["metadata"]["namespace"] != NAMESPACE]
    found = {one["metadata"]["namespace"]: rights(one["rules"]) for one in roles}
    same = rights(operators_role(plain)["rules"])
    same[of_kind(kinds.ROLE_BINDING)] = same.pop(of_kind(kinds.CLUSTER_ROLE_BINDING))
    assert found == dict.fromkeys("ab", same)
    bound = {one["metadata"]["namespace"] for one in rendered.of_kind("RoleBinding")}
    assert bound == {"a", "b", NAMESPACE}


def test_of_the_whole_cluster_only_the_id_of_home_is_read(plain: Rendered, render: Render) -> None:
    by_id = [{"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}]
    for rendered in (plain, render(watchNamespaces=["a"])):
        roles = {one["metadata"]["namespace"]: one["rules"] for one in rendered.of_kind("Role")}
        bound = {one["metadata"]["namespace"] for one in rendered.of_kind("RoleBinding")}
        assert roles["kube-system"] == by_id
        assert bound == roles.keys()


def test_the_lease_is_by_name_in_its_own_namespace(plain: Rendered) -> None:
    (role,) = [one for one in plain.of_kind("Role") if one["metadata"]["namespace"] == NAMESPACE]
    by_name = {(*rule["resources"], *rule.get("resourceNames", ())): set(rule["verbs"]) for rule in role["rules"]}
    assert rights(role["rules"]).keys() == {LEASES}
    assert by_name == {("leases", "diloco-operator"): {"get", "update"}, ("leases",): {"create"}}


def test_of_leases_elsewhere_only_that_of_the_jobs_is_written(plain: Rendered) -> None:
    rules = [rule for rule in operators_role(plain)["rules"] if rule["resources"] == ["leases"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["get", "update"], [JOBS_LEASE]),
        (["create"], None),
    ]


@pytest.mark.parametrize(("namespaces", "kind"), [((), "ClusterRoleBinding"), (("a", "b"), "RoleBinding")])
def test_the_operator_may_read_the_binding_of_its_rights(
    render: Render, namespaces: tuple[str, ...], kind: str
) -> None:
    rendered = render(watchNamespaces=list(namespaces))
    name = rendered.environment["DILOCO_BINDING"]
    where = [one["metadata"].get("namespace") for one in rendered.of_kind(kind) if one["metadata"]["name"] == name]
    assert where == list(namespaces or (None,))
    roles = [one for one in rendered.of_kind(kind.removesuffix("Binding")) if one["metadata"]["name"] == name]
    group = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": [f"{kind.lower()}s"]}
    assert all({**group, "resourceNames": [name], "verbs": ["get"]} in one["rules"] for one in roles)
    assert len(roles) == len(where)


def test_namespace_roles_extend_to_jobs_and_never_to_writing_a_status(plain: Rendered) -> None:
    people = {
        label.removeprefix("rbac.authorization.k8s.io/aggregate-to-"): rights(role["rules"])
        for role in plain.of_kind("ClusterRole")
        for label in role["metadata"]["labels"]
        if label.startswith("rbac.authorization.k8s.io/aggregate-to-")
    }
    jobs, status = ("diloco.dev", "dilocojobs"), ("diloco.dev", "dilocojobs/status")
    assert people.keys() == {"admin", "edit", "view"}
    assert people["admin"] == people["edit"]
    assert {"create", "patch", "delete"} <= people["edit"][jobs]
    assert people["view"][jobs] == {"get", "list", "watch"}
    assert people["edit"][status] == {"get"}


def test_only_with_kueue_are_there_rights_to_it_and_to_patch_pods(plain: Rendered, render: Render) -> None:
    without = rights(operators_role(plain)["rules"])
    assert "kueue.x-k8s.io" not in {group for group, _ in without}
    rendered = render(kueue={"enabled": True}, watchNamespaces=["a"], rbac={"aggregate": False})
    (role,) = rendered.of_kind("ClusterRole")
    read = {of_kind(kind): {"get"} for kind in (kinds.RESOURCE_FLAVOR, kinds.QUEUE_PRIORITY)}
    assert rights(role["rules"]) == read
    (found,) = [one for one in rendered.of_kind("Role") if one["metadata"]["namespace"] == "a"]
    more = {key: verbs - without.get(key, set()) for key, verbs in rights(found["rules"]).items()}
    workloads, status = of_kind(kinds.WORKLOAD), ("kueue.x-k8s.io", "workloads/status")
    assert {key: verbs for key, verbs in more.items() if verbs and key != of_kind(kinds.ROLE_BINDING)} == {
        workloads: {"get", "list", "watch", "create", "patch", "delete"},
        status: {"patch"},
        of_kind(kinds.POD): {"patch"},
    }
    assert rendered.environment["DILOCO_KUEUE"] == "true"
    assert plain.environment["DILOCO_KUEUE"] == "false"


def test_no_rule_has_a_wildcard(plain: Rendered) -> None:
    roles = [*plain.of_kind("Role"), *plain.of_kind("ClusterRole")]
    said = [word for role in roles for rule in role["rules"] for words in rule.values() for word in words]
    assert len(said) > 50
    assert not any("*" in word for word in said)


def test_no_account_gives_its_token_to_pods_that_do_not_ask(plain: Rendered) -> None:
    accounts = plain.of_kind("ServiceAccount")
    assert len(accounts) == 2
    assert not any(one["automountServiceAccountToken"] for one in accounts)
    assert all(pod["automountServiceAccountToken"] for pod in plain.pods)


def test_an_account_of_ones_own_is_used_and_not_made(render: Render) -> None:
    rendered = render(serviceAccount={"create": False, "name": "mine"})
    assert rendered.only("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert [one["metadata"]["name"] for one in rendered.of_kind("ServiceAccount")] == ["diloco-diloco-operator-test"]
    assert {one["subjects"][0]["name"] for one in rendered.of_kind("RoleBinding")} == {"mine"}
