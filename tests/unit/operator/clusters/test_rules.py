"""The table of what the operator may do in a remote namespace: least rights, each with its reason."""

from diloco_operator.api_server import kinds
from diloco_operator.clusters.rules import RULES, OnlyObject, RoleScope, permissions, role_rules
from diloco_operator.manifests import abroad

PLACE = RoleScope("learners", "diloco-home")


def test_what_is_watched_there_is_what_a_job_has_there() -> None:
    assert {kind.name for kind in kinds.REMOTE_CHILDREN} == abroad.KINDS


def test_what_learners_run_without_is_optional() -> None:
    optional = {(rule.resource, *rule.verbs) for rule in RULES if rule.is_optional}
    assert optional == {
        ("pods", "delete"),
        ("persistentvolumeclaims", "list"),
        ("serviceaccounts/token", "create"),
        ("namespaces", "get"),
    }
    assert all(rule.is_optional for rule in RULES if rule.only is not None)


def test_without_an_account_of_its_own_nothing_is_said_of_tokens() -> None:
    place = RoleScope("learners")
    assert not [one for one in permissions(place) if one.rule.only is OnlyObject.ACCOUNT]
    assert not [rule for _, rule in role_rules(place) if rule["resources"] == ["serviceaccounts/token"]]


def test_each_verb_is_asked_for_by_itself() -> None:
    asked = [str(one) for one in permissions(PLACE)]
    assert len(asked) == len(set(asked)) == sum(len(rule.verbs) for rule in RULES)
    assert {"patch statefulsets.apps", "list pods", "create serviceaccounts/token"} <= set(asked)


def test_what_a_rule_is_restricted_to_is_asked_for_by_its_name() -> None:
    names = {str(one): one.name for one in permissions(PLACE) if one.name}
    assert names == {"create serviceaccounts/token": "diloco-home", "get namespaces": "learners"}
