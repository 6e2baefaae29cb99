"""What ``diloco cluster prepare`` prints for the owner of a remote cluster."""

from typing import Any

import pytest
import yaml

from diloco.cli.main import execute
from diloco_operator.clusters.rules import Place, role_rules
from tests.support.golden import assert_golden


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["cluster", "prepare", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return str(captured.out)


def by_kind(text: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_text_is_as_reviewed(capsys: pytest.CaptureFixture[str]) -> None:
    assert_golden(printed(capsys, "learners"), "cluster-prepare.yaml")


def test_the_same_arguments_give_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "learners") == printed(capsys, "learners")


def test_the_role_has_the_rules_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    role = by_kind(printed(capsys, "there", "--service-account", "team-a"))["Role"]
    assert role["rules"] == [rule for _, rule in role_rules(Place("there", "team-a"))]


def test_nothing_is_granted_outside_the_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    made = by_kind(printed(capsys, "there", "--service-account", "team-a"))
    assert set(made) == {"Namespace", "ServiceAccount", "Role", "RoleBinding"}
    assert made["Namespace"]["metadata"]["name"] == "there"
    others = [made[kind]["metadata"] for kind in ("ServiceAccount", "Role", "RoleBinding")]
    assert {(one["namespace"], one["name"]) for one in others} == {("there", "team-a")}
    assert made["RoleBinding"]["roleRef"] | {"apiGroup": ""} == {"apiGroup": "", "kind": "Role", "name": "team-a"}
    assert made["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "team-a", "namespace": "there"}]


def test_pods_there_are_restricted_and_get_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    made = by_kind(printed(capsys, "there"))
    security = {key: value for key, value in made["Namespace"]["metadata"]["labels"].items() if "security" in key}
    assert security == {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    assert made["ServiceAccount"]["automountServiceAccountToken"] is False


def test_the_operator_does_not_take_these_objects_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for one in by_kind(printed(capsys, "there")).values():
        assert "app.kubernetes.io/managed-by" not in one["metadata"]["labels"]
