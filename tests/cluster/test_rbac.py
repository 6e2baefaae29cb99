"""Permissions in a real cluster: the operator has those of the chart's roles and no more, people those of theirs.

That the operator needs each of its rules is tested on an API server alone, where it is quick to remove one. That they
are enough is shown by every other test here, as the operator has only the chart's account.
"""

from collections.abc import Iterable

import pytest
import yaml

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster

JOBS = "diloco.dev/dilocojobs"
STATUS = "diloco.dev/dilocojobs/status"
LEASES = "coordination.k8s.io/leases"
EVERYTHING = ("get", "list", "watch", "create", "update", "patch", "delete")
OPERATOR_MAY_NOT = {
    *((verb, "/pods") for verb in EVERYTHING if verb not in ("list", "delete")),
    *((verb, "/nodes") for verb in EVERYTHING),
    *((verb, "/namespaces") for verb in EVERYTHING),
    *((verb, "rbac.authorization.k8s.io/rolebindings") for verb in EVERYTHING),
    *((verb, "apiextensions.k8s.io/customresourcedefinitions") for verb in EVERYTHING),
    *((verb, JOBS) for verb in ("create", "update")),
    ("update", STATUS),
    ("create", "/pods/exec"),
    ("delete", "/persistentvolumeclaims"),
    ("update", "apps/statefulsets"),
    ("list", LEASES),
}


class Account:
    """A user in a namespace, whose permissions the API server reports."""

    def __init__(self, cluster: Cluster, namespace: str, user: str, *groups: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._who = {"user": user, "groups": ["system:authenticated", *groups]}

    def may(self, wanted: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """The allowed ones of these (verb, GROUP/RESOURCE[/SUBRESOURCE][=NAME])."""
        asked = sorted(wanted)
        text = yaml.safe_dump_all(self._review(*one) for one in asked)
        output = ("--output", "jsonpath={.status.allowed}{'\\n'}")
        answers = self._cluster.kubectl("create", "--filename", "-", *output, stdin=text).split()
        return {one for one, answer in zip(asked, answers, strict=True) if answer == "true"}

    def _review(self, verb: str, what: str) -> dict[str, object]:
        resource, _, name = what.partition("=")
        group, resource, *rest = resource.split("/")
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": self._namespace, "name": name}
        attributes |= {"subresource": rest[0]} if rest else {}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**self._who, "resourceAttributes": attributes},
        }


def operator(cluster: Cluster, chart: Release, namespace: str) -> Account:
    return Account(
        cluster, namespace, f"system:serviceaccount:{chart.namespace}:{chart.name}", "system:serviceaccounts"
    )


def test_the_operator_may_do_nothing_that_it_does_not_do(cluster: Cluster, chart: Release, namespace: str) -> None:
    there = operator(cluster, chart, namespace)
    done = {("patch", "apps/statefulsets"), ("patch", JOBS)}  # a finalizer
    assert there.may({*done, *OPERATOR_MAY_NOT}) == done


def test_the_operator_may_write_its_lease_and_no_other(cluster: Cluster, chart: Release, namespace: str) -> None:
    leases = {("update", f"{LEASES}={name}") for name in ("diloco-operator", "another")}
    assert operator(cluster, chart, chart.namespace).may(leases) == {("update", f"{LEASES}=diloco-operator")}
    assert operator(cluster, chart, namespace).may(leases) == set()


@pytest.mark.parametrize(
    ("role", "verbs"), [("admin", EVERYTHING), ("edit", EVERYTHING), ("view", ("get", "list", "watch"))]
)
def test_roles_of_a_namespace_extend_to_its_jobs_but_not_to_their_status(
    cluster: Cluster, chart: Release, namespace: str, role: str, verbs: tuple[str, ...]
) -> None:
    assert chart.namespace != namespace
    cluster.kubectl("create", "rolebinding", "jane", f"--clusterrole={role}", "--user=jane", "--namespace", namespace)
    asked = {(verb, what) for verb in EVERYTHING for what in (JOBS, STATUS)}
    allowed = Account(cluster, namespace, "jane").may(asked)
    assert {verb for verb, what in allowed if what == JOBS} == set(verbs)
    assert {verb for verb, what in allowed if what == STATUS} <= {"get", "list", "watch"}
    assert ("get", STATUS) in allowed
    assert Account(cluster, "default", "jane").may(asked) == set()
