import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diloco_operator.clusters.rules import RULES, Permission, RoleScope, permissions
from diloco_operator.commands.findings import (
    Finding,
    NoKubeconfigError,
    Verdict,
    content,
    findings_table,
    of_expiry,
    of_labels,
    of_namespace,
    of_rule,
)
from tests.support.drawn import drawn

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLACE = RoleScope("learners", "diloco-home")
BY_RESOURCE = {rule.resource: rule for rule in reversed(RULES)}
"""The first rule about each resource, without which no region can run."""
GOOD, NOTE, PROBLEM = Verdict


def granted(*missing: str) -> dict[Permission, bool]:
    return {one: str(one) not in missing for one in permissions(PLACE)}


def test_a_secret_without_the_label_gets_the_command_that_adds_it() -> None:
    found = of_labels({"metadata": {"name": "west"}})
    assert found.verdict is PROBLEM
    assert found.line.endswith("; add it: kubectl label secret west diloco.dev/cluster=true")
    assert of_labels({"metadata": {"labels": {"diloco.dev/cluster": ""}}}).verdict is GOOD


@pytest.mark.parametrize("name", ["x; rm -rf .", "$(id)", "", None, 7, "a\nb", "x" * 300])
def test_what_is_no_name_is_in_no_command_that_people_copy(name: Any) -> None:
    assert of_labels({"metadata": {"name": name}}).line.endswith("kubectl label secret NAME diloco.dev/cluster=true")


def test_what_a_server_says_is_printable_and_short() -> None:
    found = Finding("connection", PROBLEM, "\x1b[2J" + "x" * 10_000)
    assert found.line.startswith("connection: \\x1b[2Jxxx")
    assert len(found.line) < 600


@pytest.mark.parametrize("secret", [{"data": {"k": base64.b64encode(b"text").decode()}}, {"stringData": {"k": "text"}}])
def test_the_content_is_read_in_both_forms(secret: dict[str, Any]) -> None:
    assert content(secret, "k") == b"text"


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        ({}, "Secret: has no key kubeconfig; it is empty; make a new Secret"),
        ({"data": None, "stringData": []}, "Secret: has no key kubeconfig; it is empty"),
        ({"data": {"config": "eA=="}}, "Secret: has no key kubeconfig; there is config; use --key, or make a new"),
        ({"data": {"kubeconfig": "s3cret!"}}, "Secret: data.kubeconfig is not base64; make a new Secret"),
    ],
)
def test_a_secret_without_a_kubeconfig_is_a_problem(secret: dict[str, Any], told: str) -> None:
    with pytest.raises(NoKubeconfigError) as raised:
        content(secret, "kubeconfig")
    assert raised.value.finding.verdict is PROBLEM
    assert raised.value.finding.line.startswith(told)
    assert "s3cret" not in raised.value.finding.line


@pytest.mark.parametrize(
    ("left", "renewed", "verdict", "told"),
    [
        (timedelta(0), True, PROBLEM, "expired at 2026-01-01 12:00 UTC"),
        (timedelta(minutes=30), True, GOOD, "in 30 minutes; the operator renews it"),
        (timedelta(minutes=30), False, NOTE, "in 30 minutes, and is not renewed"),
        (timedelta(days=6), False, NOTE, "in 6 days, and is not renewed"),
        (timedelta(days=8), False, GOOD, "in 8 days"),
    ],
)
def test_what_expires_soon_and_is_not_renewed_is_said(
    left: timedelta, renewed: bool, verdict: Verdict, told: str
) -> None:
    found = of_expiry("token", NOW + left, NOW, renewed=renewed)
    assert found.verdict is verdict
    assert found.told.endswith(told)
    assert bool(found.do) is (verdict is not GOOD)


def test_credentials_that_do_not_expire_are_a_note() -> None:
    assert of_expiry("token", None, NOW, renewed=False).verdict is NOTE


def test_a_rule_lists_its_verbs_or_those_that_are_missing() -> None:
    what, fix = (
        "statefulsets.apps",
        "have 'diloco cluster prepare learners --service-account diloco-home' applied there",
    )
    for missing, found in (
        ((), Finding(what, GOOD, "get, list, watch, create, patch and delete")),
        (("patch",), Finding(what, PROBLEM, "patch is missing", fix)),
        (("get", "patch"), Finding(what, PROBLEM, "get and patch are missing", fix)),
    ):
        held = granted(*(f"{verb} {what}" for verb in missing))
        assert of_rule(BY_RESOURCE["statefulsets"], held, PLACE) == found


def test_an_optional_rule_says_what_does_not_work_without_it() -> None:
    found = of_rule(BY_RESOURCE["serviceaccounts/token"], granted("create serviceaccounts/token"), PLACE)
    assert found.verdict is NOTE
    assert "create is missing: the operator cannot renew its token" in found.told
    (rule,) = [rule for rule in RULES if (rule.resource, rule.verbs) == ("pods", ("delete",))]
    found = of_rule(rule, granted("delete pods"), PLACE)
    assert (found.what, found.verdict) == ("pods", NOTE)
    assert "delete is missing: a learner's pod on a node that does not respond stays" in found.told


@pytest.mark.parametrize(
    ("namespace", "verdict", "told"),
    [
        (None, PROBLEM, "learners does not exist"),
        ({"status": {"phase": "Terminating"}}, PROBLEM, "learners is being deleted"),
        ({"metadata": {}}, NOTE, "does not enforce restricted"),
        ({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}, NOTE, "but baseline"),
        ({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}, GOOD, "enforces restricted"),
        ({"metadata": [], "status": 3}, NOTE, "does not enforce restricted"),
    ],
)
def test_the_namespace_is_judged_by_its_pod_security(namespace: Any, verdict: Verdict, told: str) -> None:
    found = of_namespace(namespace, "learners")
    assert found.verdict is verdict
    assert told in found.told


def test_the_table_has_a_row_for_each_check() -> None:
    table = findings_table([Finding("token", GOOD, "fine"), Finding("pods", PROBLEM, "[list] is missing", "x")])
    assert [line.split() for line in drawn(table).splitlines()] == [
        ["check", "result", "found"],
        ["token", "ok", "fine"],
        ["pods", "problem", "[list]", "is", "missing"],
    ]
