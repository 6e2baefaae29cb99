from typing import Any

import pytest
import yaml

from diloco.cli.main import execute
from diloco_operator.clusters.rules import RoleScope, role_rules
from tests.support.golden import assert_golden


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert execute(["cluster", "prepare", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return str(captured.out)


def test_the_text_is_as_reviewed(capsys: pytest.CaptureFixture[str]) -> None:
    assert_golden(printed(capsys, "learners"), "cluster-prepare.yaml")


def test_nothing_is_granted_outside_the_namespace_or_to_another_account(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "there", "--service-account", "team-a")
    made: dict[str, dict[str, Any]] = {one["kind"]: one for one in yaml.safe_load_all(text)}
    assert made["Role"]["rules"] == [rule for _, rule in role_rules(RoleScope("there", "team-a"))]
    assert set(made) == {"Namespace", "ServiceAccount", "Role", "RoleBinding"}
    assert made["Namespace"]["metadata"]["name"] == "there"
    others = [made[kind]["metadata"] for kind in ("ServiceAccount", "Role", "RoleBinding")]
    assert {(one["namespace"], one["name"]) for one in others} == {("there", "team-a")}
    assert made["RoleBinding"]["roleRef"] | {"apiGroup": ""} == {"apiGroup": "", "kind": "Role", "name": "team-a"}
    assert made["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "team-a", "namespace": "there"}]
