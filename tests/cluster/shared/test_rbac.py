"""Permissions in a real cluster: the operator has those of the chart's roles and no more, people those of theirs.

That the operator needs each of its rules is tested on an API server alone, where it is quick to remove one. That they
are enough is shown by every other test here, as the operator has only the chart's account.
"""

from collections.abc import Iterable

import yaml

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster

JOBS = "diloco.dev/dilocojobs"
STATUS = "diloco.dev/dilocojobs/status"
LEASES = "coordination.k8s.io/leases"
EVERYTHING = ("get", "list", "watch", "create", "update", "patch", "delete")
READING = ("get", "list", "watch")
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
    ("update", f"{LEASES}=diloco-operator"),
}
"""In a namespace that is not its own."""


def may(
    cluster: Cluster, namespace: str, user: str, wanted: Iterable[tuple[str, str]], *groups: str
) -> set[tuple[str, str]]:
    """What a user may do of these (verb, GROUP/RESOURCE[/SUBRESOURCE][=NAME]), by the API server's word."""
    asked = sorted(wanted)
    who = {"user": user, "groups": ["system:authenticated", *groups]}
    text = yaml.safe_dump_all(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**who, "resourceAttributes": {**attributes(*one), "namespace": namespace}},
        }
        for one in asked
    )
    output = ("--output", "jsonpath={.status.allowed}{'\\n'}")
    answers = cluster.kubectl("create", "--filename", "-", *output, stdin=text).split()
    return {one for one, answer in zip(asked, answers, strict=True) if answer == "true"}


def attributes(verb: str, what: str) -> dict[str, str]:
    resource, _, name = what.partition("=")
    group, resource, *rest = resource.split("/")
    return {"verb": verb, "group": group, "resource": resource, "subresource": "".join(rest), "name": name}


def test_the_operator_may_do_nothing_that_it_does_not_do(cluster: Cluster, chart: Release, namespace: str) -> None:
    account = f"system:serviceaccount:{chart.namespace}:{chart.name}"
    # A finalizer, and the Lease of the operator that acts in the namespace.
    done = {("patch", "apps/statefulsets"), ("patch", JOBS), ("update", f"{LEASES}=diloco-jobs")}
    assert may(cluster, namespace, account, {*done, *OPERATOR_MAY_NOT}, "system:serviceaccounts") == done
    leases = {("update", f"{LEASES}={name}") for name in ("diloco-operator", "another")}
    own = may(cluster, chart.namespace, account, leases, "system:serviceaccounts")
    assert own == {("update", f"{LEASES}=diloco-operator")}


def test_roles_of_a_namespace_extend_to_its_jobs_but_not_to_their_status(
    cluster: Cluster, chart: Release, namespace: str
) -> None:
    assert chart.namespace != namespace
    asked = {(verb, what) for verb in EVERYTHING for what in (JOBS, STATUS)}
    for role, verbs in (("edit", EVERYTHING), ("view", READING)):
        cluster.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}-er", "-n", namespace)
        allowed = may(cluster, namespace, f"{role}-er", asked)
        assert {verb for verb, what in allowed if what == JOBS} == set(verbs)
        assert {"get"} <= {verb for verb, what in allowed if what == STATUS} <= set(READING)
        assert may(cluster, "default", f"{role}-er", asked) == set()
