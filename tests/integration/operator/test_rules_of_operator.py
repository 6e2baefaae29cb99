"""Every rule of the chart's roles is needed: without it, the operator's log names exactly that verb and resource.

One operator reconciles a namespace for each rule about single objects, each with all such rules except one. A rule
about a whole kind or the Lease is withheld from an operator of its own, or together with others used at the same time.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diloco_operator import labels
from diloco_operator.api_server.kinds import CHILDREN, JOB, LEASE, STATEFUL_SET, Kind
from diloco_operator.options import JOBS_LEASE
from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none
from testbed.kind import tools
from testbed.kind.cache import Cache
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from tests.support.operator_scene import manifest
from tests.support.rendered_chart import NAMESPACE, helm_template

RBAC = "rbac.authorization.k8s.io"
SYSTEM = "kube-system"
FINISHED = {
    "phase": "Complete",
    "completionTime": "2026-01-02T03:04:05Z",
    "conditions": [
        {
            "type": "Complete",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-02T03:04:05Z",
            "reason": "BudgetReached",
            "message": "",
        }
    ],
}
EXTRA = "extra"
_PODS = {
    "selector": {"matchLabels": {"a": "b"}},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
}
SPECS_OF_EXTRAS: dict[str, dict[str, Any]] = {
    "StatefulSet": {**_PODS, "replicas": 0},
    "Deployment": _PODS,
    "Service": {"ports": [{"port": 1}]},
    "PodDisruptionBudget": {"selector": {}},
    "NetworkPolicy": {"podSelector": {}},
}
"""What objects of a kind must have; others need nothing."""


class Rule(NamedTuple):
    """One verb on one resource."""

    group: str
    resource: str
    verb: str

    @property
    def refusal(self) -> str:
        """The API server's message when it is missing."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'

    @property
    def namespace(self) -> str:
        """The namespace of the job for which it is withheld."""
        return f"no-{self.verb}-{self.resource.replace('/', '-')}-{self.group.replace('.', '-') or 'core'}"[:63].strip(
            "-"
        )


BINDING = Rule(RBAC, "clusterrolebindings", "get")
"""By name, in the whole cluster: what owns the Leases of namespaces."""
LOST_PODS = Rule("", "pods", "delete")
"""Needed only for a pod on a lost node: `test_without_the_right_the_cause_is_told_until_it_is_granted`."""


@dataclass(frozen=True)
class Rules:
    """The chart's rules, by what they are about."""

    kinds: frozenset[Rule]
    """Lists and watches of all jobs and all that they are made of."""
    objects: frozenset[Rule]
    """Everything else that is done to a job."""
    lease: frozenset[Rule]
    home: frozenset[Rule]
    """The home's id, in a namespace of the cluster's."""


def one_by_one(rules: Iterable[dict[str, Any]]) -> frozenset[Rule]:
    """Every verb on every resource."""
    return frozenset(
        Rule(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


@pytest.fixture(scope="module")
def rules() -> Rules:
    helm = tools.helm_if_there(Cache.of_user())
    if helm is None:
        pytest.skip("no helm: neither on PATH nor built yet (`make kind-up` builds one)")
    rendered = helm_template(helm, {"rbac": {"aggregate": False}})
    of_jobs = one_by_one(rendered.only("ClusterRole")["rules"])
    watched = {(kind.group, kind.plural) for kind in (JOB, *CHILDREN)}
    kinds = frozenset(rule for rule in of_jobs if rule.verb in ("list", "watch") and rule[:2] in watched)
    roles = {role["metadata"]["namespace"]: one_by_one(role["rules"]) for role in rendered.of_kind("Role")}
    return Rules(kinds, of_jobs - kinds, roles[NAMESPACE], roles[SYSTEM])


class Server:
    """An API server of this module's own, as the operator reconciles all of its jobs."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    def make(self, path: str, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Create an object."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}
        made: dict[str, Any] = self.server.put(path, body)
        return made

    def namespace(self, name: str) -> str:
        self.make("/api/v1/namespaces", "v1", "Namespace", name)
        return name

    def grant(self, user: str, rules: Iterable[Rule], namespace: str | None = None) -> None:
        """Grant a user these permissions, in a namespace or everywhere."""
        kind = "ClusterRole" if namespace is None else "Role"
        base = f"/apis/{RBAC}/v1" + ("" if namespace is None else f"/namespaces/{namespace}")
        listed = [{"apiGroups": [rule.group], "resources": [rule.resource], "verbs": [rule.verb]} for rule in rules]
        self.make(f"{base}/{kind.lower()}s", f"{RBAC}/v1", kind, user, rules=listed)
        reference = {"apiGroup": RBAC, "kind": kind, "name": user}
        subjects = [{"apiGroup": RBAC, "kind": "User", "name": user}]
        where = f"{base}/{kind.lower()}bindings"
        self.make(where, f"{RBAC}/v1", f"{kind}Binding", user, roleRef=reference, subjects=subjects)
        self.server.until_rules_hold()

    def job(self, namespace: str) -> dict[str, Any]:
        spec = manifest("one", {"here": {"cpu": 1}}, ttlSecondsAfterFinished=0)["spec"]
        # With a region in another cluster it gets a finalizer. There is no such cluster, and nothing waits for it.
        elsewhere = {"name": "there", "cluster": {"kubeconfigSecretRef": {"name": "far"}}, "pools": [{"name": "cpu"}]}
        spec["regions"].append(elsewhere)
        spec["syncer"] = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
        return self.make(JOB.path(namespace), JOB.api_version, JOB.name, "one", spec=spec)

    def extra(self, kind: Kind, job: dict[str, Any]) -> None:
        """A child that the job no longer has."""
        owner = {"apiVersion": JOB.api_version, "kind": JOB.name, "name": "one", "uid": job["metadata"]["uid"]}
        metadata = {"labels": labels.of_job("one", labels.JOB_WIDE), "ownerReferences": [{**owner, "controller": True}]}
        fields = {"spec": SPECS_OF_EXTRAS[kind.name]} if kind.name in SPECS_OF_EXTRAS else {}
        path = kind.path(job["metadata"]["namespace"])
        self.make(path, kind.api_version, kind.name, EXTRA, metadata=metadata, **fields)
        if kind == STATEFUL_SET:  # its learners have left
            there = kind.path(job["metadata"]["namespace"], EXTRA)
            self.server.set_status(there, {"observedGeneration": 1, "replicas": 0})

    def finish(self, namespace: str) -> None:
        """End its job, and its time to live."""
        self.server.set_status(JOB.path(namespace, "one"), FINISHED)

    def has(self, kind: Kind, namespace: str, name: str) -> bool:
        return self.server.request("GET", kind.path(namespace, name))[0] == 200


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if reason := why_there_is_none():
        pytest.skip(reason)
    with job_api_server() as running:
        yield Server(running)


def deletable(rules: Rules) -> list[Kind]:
    """The kinds of children that the operator deletes one by one."""
    deleted = {rule[:2] for rule in rules.objects if rule.verb == "delete"}
    return [kind for kind in CHILDREN if (kind.group, kind.plural) in deleted]


def test_every_rule_about_single_objects_is_needed(server: Server, rules: Rules, tmp_path: Path) -> None:
    user, whole, own = "worker", server.namespace("nothing-withheld"), server.namespace("system")
    withheld = {server.namespace(rule.namespace): rule for rule in sorted(rules.objects - {LOST_PODS, BINDING})}
    server.grant(user, rules.kinds | {BINDING})
    server.grant(user, rules.lease, own)
    server.grant(user, rules.home, SYSTEM)
    server.grant(user, rules.objects, whole)
    for namespace, rule in withheld.items():
        server.grant(user, rules.objects - {rule}, namespace)
    jobs = {namespace: server.job(namespace) for namespace in (whole, *withheld)}
    for kind in deletable(rules):
        server.extra(kind, jobs[whole])
        server.extra(kind, jobs[Rule(kind.group, kind.plural, "delete").namespace])

    log = tmp_path / "operator.log"
    kubeconfig = server.server.kubeconfig_for(user)
    flags = (f"--operator-namespace={own}", "--namespaces=", f"--binding={user}", "--remote-deletion-seconds=1")
    with OperatorProcess(kubeconfig, log, *flags) as operator:

        def refused() -> dict[str, str]:
            """The latest refusal in each namespace."""
            lines = [line for line in operator.log.splitlines() if "cannot" in line]
            return {name: line for name in jobs for line in lines if f'in the namespace "{name}"' in line}

        ttl = Rule(JOB.group, JOB.plural, "delete").namespace
        wait_until(lambda: set(withheld) - set(refused()) <= {ttl}, "all is refused that is withheld")
        for namespace in (ttl, whole):
            server.finish(namespace)
        wait_until(lambda: ttl in refused(), "that the job is deleted is refused")
        wait_until(lambda: not server.has(JOB, whole, "one"), "where nothing is withheld it is deleted")
        assert not [kind.name for kind in deletable(rules) if server.has(kind, whole, EXTRA)]
        lease = server.server.request("GET", LEASE.path(whole, JOBS_LEASE))[1]["metadata"]
        assert [(one["kind"], one["name"]) for one in lease["ownerReferences"]] == [("ClusterRoleBinding", user)]
        assert {name: line for name, line in refused().items() if withheld[name].refusal not in line} == {}


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("of_jobs", [False, True], ids=["what jobs are made of", "jobs"])
def test_every_rule_about_whole_kinds_is_needed(
    server: Server, rules: Rules, tmp_path: Path, verb: str, of_jobs: bool
) -> None:
    withheld = {rule for rule in rules.kinds if rule.verb == verb and (rule.group == JOB.group) is of_jobs}
    with refused_without(withheld, server, rules, tmp_path):
        pass


@pytest.mark.parametrize("verb", ["get", "create", "update"])
def test_every_rule_about_the_lease_is_needed(server: Server, rules: Rules, tmp_path: Path, verb: str) -> None:
    with refused_without({rule for rule in rules.lease if rule.verb == verb}, server, rules, tmp_path):
        pass


@contextmanager
def refused_without(withheld: set[Rule], server: Server, rules: Rules, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator of one namespace without these rules, once it has needed each of them; it needs no other."""
    assert withheld
    user = min(withheld).namespace.replace("no-", "without-")
    own, watched = server.namespace(user), server.namespace(f"watched-{user}"[:63].rstrip("-"))
    server.grant(user, rules.lease - withheld, own)
    server.grant(user, rules.home - withheld, SYSTEM)
    server.grant(user, (rules.kinds | rules.objects) - withheld, watched)
    log = tmp_path / "operator.log"
    kubeconfig = server.server.kubeconfig_for(user)
    with OperatorProcess(kubeconfig, log, f"--operator-namespace={own}", f"--namespaces={watched}") as operator:
        wait_until(
            lambda: not [rule for rule in withheld if rule.refusal not in operator.log], "each is refused by name"
        )
        yield operator
        lines = [line for line in operator.log.splitlines() if " cannot " in line and "resource" in line]
        assert [line for line in lines if not any(rule.refusal in line for rule in withheld)] == []
