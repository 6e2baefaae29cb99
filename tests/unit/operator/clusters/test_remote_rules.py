"""The table of what the operator may do in a remote namespace: least rights, each with its reason."""

from typing import Any

import pytest

from diloco_operator.cluster import kinds
from diloco_operator.cluster.kinds import Kind
from diloco_operator.clusters.rules import RULES, Only, Place, is_granted, permissions, role_rules
from diloco_operator.manifests import abroad

PLACE = Place("learners", "diloco-home")
LOOKED_AT = (kinds.POD, kinds.CORE_EVENT)
"""Kinds that are only listed, to name a cause."""


def rights() -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in RULES:
        found.setdefault((rule.group, rule.resource), set()).update(rule.verbs)
    return found


def of_kind(kind: Kind) -> tuple[str, str]:
    return (kind.group, kind.plural)


def test_what_is_watched_there_is_what_a_job_has_there() -> None:
    assert {kind.name for kind in kinds.REMOTE_CHILDREN} == abroad.KINDS


def test_a_rule_has_the_verbs_that_are_used_and_no_others() -> None:
    # get: find_metadata; list, watch: the caches; create, patch: apply, overwrite; delete: delete.
    child = {"get", "list", "watch", "create", "patch", "delete"}
    assert rights() == {
        **{of_kind(kind): child for kind in kinds.REMOTE_CHILDREN},
        **{of_kind(kind): {"list"} for kind in LOOKED_AT},
        of_kind(kinds.POD): {"list", "delete"},
        of_kind(kinds.CLAIM): {"list"},
        ("", "serviceaccounts/token"): {"create"},
        ("", "namespaces"): {"get"},
    }


def test_no_rule_has_a_wildcard_and_no_verb_is_named_twice() -> None:
    assert sum(map(len, rights().values())) == sum(len(rule.verbs) for rule in RULES)
    words = [word for rule in RULES for word in (rule.group, rule.resource, *rule.verbs)]
    assert not any("*" in word for word in words)


def test_every_rule_tells_its_owner_why_in_a_sentence() -> None:
    assert [rule for rule in RULES if not rule.why.endswith(".")] == []


def test_what_learners_run_without_is_optional() -> None:
    optional = {(rule.resource, *rule.verbs) for rule in RULES if rule.is_optional}
    assert optional == {
        ("pods", "delete"),
        ("persistentvolumeclaims", "list"),
        ("serviceaccounts/token", "create"),
        ("namespaces", "get"),
    }
    assert all(rule.is_optional for rule in RULES if rule.only is not None)


def test_a_role_restricts_the_token_and_the_namespace_to_one_name() -> None:
    names = {rule["resources"][0]: rule["resourceNames"] for _, rule in role_rules(PLACE) if "resourceNames" in rule}
    assert names == {"serviceaccounts/token": ["diloco-home"], "namespaces": ["learners"]}


def test_a_role_has_every_rule_and_its_reason() -> None:
    made = [(rule["apiGroups"][0], rule["resources"][0], tuple(rule["verbs"])) for _, rule in role_rules(PLACE)]
    assert made == [(rule.group, rule.resource, rule.verbs) for rule in RULES]
    assert [why for why, _ in role_rules(PLACE)] == [rule.why for rule in RULES]


def test_without_an_account_of_its_own_nothing_is_said_of_tokens() -> None:
    place = Place("learners")
    assert not [one for one in permissions(place) if one.rule.only is Only.ACCOUNT]
    assert not [rule for _, rule in role_rules(place) if rule["resources"] == ["serviceaccounts/token"]]


def test_each_verb_is_asked_for_by_itself() -> None:
    asked = [str(one) for one in permissions(PLACE)]
    assert len(asked) == len(set(asked)) == sum(len(rule.verbs) for rule in RULES)
    assert {"patch statefulsets.apps", "list pods", "create serviceaccounts/token"} <= set(asked)


def test_a_review_asks_in_the_terms_of_the_api_server() -> None:
    by_text = {str(one): one.review()["spec"]["resourceAttributes"] for one in permissions(PLACE)}
    assert by_text["patch statefulsets.apps"] == {
        "namespace": "learners",
        "verb": "patch",
        "group": "apps",
        "resource": "statefulsets",
    }
    assert by_text["create serviceaccounts/token"] == {
        "namespace": "learners",
        "verb": "create",
        "group": "",
        "resource": "serviceaccounts",
        "subresource": "token",
        "name": "diloco-home",
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": {"allowed": True}}, True),
        ({"status": {"allowed": False, "reason": "no rule"}}, False),
        ({"status": {}}, None),
        ({"status": {"allowed": "yes"}}, None),
        ({"status": []}, None),
        ({}, None),
    ],
)
def test_only_a_plain_yes_of_the_server_counts_as_granted(answer: dict[str, Any], said: bool | None) -> None:
    assert is_granted(answer) is said
