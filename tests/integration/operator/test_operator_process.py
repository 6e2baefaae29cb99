"""The whole operator against a real API server. There are no controllers: what it makes stays as it was made."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco_operator.main import EXIT_BAD_INPUT, EXIT_LEASE_LOST, EXIT_OK
from kind.cache import Cache
from kind.tools import helm_if_there
from support.api_server import ApiServer
from support.fault_proxy import FaultProxy
from support.operator_process import OperatorProcess, eventually

CHILDREN = (
    "statefulsets,deployments,services,configmaps,secrets,persistentvolumeclaims,poddisruptionbudgets,networkpolicies"
)
CHART = Path(__file__).parents[3] / "charts" / "diloco-operator"
POOLS = {"us-east": {"fast": 2}, "eu": {"slow": 1}}
CHILDREN_OF_TWO_POOLS = 14
HELM = helm_if_there(Cache.of_user())

Start = Callable[..., OperatorProcess]


def manifest(name: str, pools: dict[str, dict[str, int]] = POOLS, **spec: Any) -> dict[str, Any]:
    regions = [
        {"name": region, "pools": [{"name": pool, "learners": learners} for pool, learners in of_region.items()]}
        for region, of_region in pools.items()
    ]
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": name},
        "spec": {
            "image": "registry.example/trainer:1",
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {"path": "/data"}},
            "training": {"tokens": 1_000_000, "sequenceLength": 16, "batchSize": 4},
            "regions": regions,
            **spec,
        },
    }


class Cluster:
    """A namespace of the server, as a user sees it."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return self.server.kubectl(f"--namespace={self.namespace}", *arguments, text=text, check=check).stdout

    def apply(self, body: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", text=json.dumps(body))

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "--output=json", check=False) or "{}")

    def children(self) -> dict[str, dict[str, Any]]:
        items = self.get(CHILDREN, "--selector=diloco.dev/job").get("items", [])
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}

    def versions(self) -> dict[str, str]:
        """Of all children and jobs."""
        items = {**self.children(), **{item["metadata"]["name"]: item for item in self.get("dilocojobs")["items"]}}
        return {name: item["metadata"]["resourceVersion"] for name, item in items.items()}

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.get("dilocojob", job).get("status", {})
        return status

    def condition(self, job: str, kind: str) -> dict[str, Any]:
        return next((one for one in self.status(job).get("conditions", []) if one["type"] == kind), {})

    def collect_garbage(self, job: str) -> None:
        """As the garbage collector would: there is none here, nor anybody who would let a claim go."""
        selector = f"--selector=diloco.dev/job={job}"
        self.kubectl("delete", CHILDREN, selector, "--wait=false")
        for claim in self.get("persistentvolumeclaims", selector)["items"]:
            name = claim["metadata"]["name"]
            self.kubectl("patch", "pvc", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}')

    def settled(self, job: str, children: int = CHILDREN_OF_TWO_POOLS) -> None:
        eventually(
            f"{job} has its children and a status",
            lambda: len(self.children()) == children and self.status(job).get("phase") == "Pending",
        )


@pytest.fixture
def cluster(server: ApiServer, namespace: str) -> Cluster:
    return Cluster(server, namespace)


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Start:
    count = 0

    def started(kubeconfig: Path | None = None, *flags: str) -> OperatorProcess:
        nonlocal count
        count += 1
        return OperatorProcess(
            kubeconfig or cluster.server.kubeconfig,
            tmp_path / f"operator-{count}.log",
            f"--operator-namespace={cluster.namespace}",
            f"--namespaces={cluster.namespace}",
            "--poll-seconds=0.5",
            *flags,
        )

    return started


def reconciles_again(operator: OperatorProcess, times: int = 4) -> None:
    before = operator.reconciles
    eventually("it reconciles again", lambda: operator.reconciles >= before + times)


def test_a_job_gets_all_its_children_a_status_and_an_event_and_nothing_on_itself(
    cluster: Cluster, start: Start
) -> None:
    with start() as operator:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        eventually("an event", lambda: cluster.get("events")["items"])
        live = cluster.get("dilocojob", "two")
        owners = [owner for child in cluster.children().values() for owner in child["metadata"]["ownerReferences"]]
        assert {owner["uid"] for owner in owners} == {live["metadata"]["uid"]}
        assert "finalizers" not in live["metadata"]
        assert set(live["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
        assert cluster.condition("two", "Ready")["reason"] == "WaitingForSyncer"
        [event] = cluster.get("events")["items"]
        assert event["reason"] == "WaitingForSyncer"
        assert event["involvedObject"]["uid"] == live["metadata"]["uid"]
        assert "reconcile failed" not in operator.log
        assert operator.stop() == EXIT_OK


def test_where_nothing_changes_nothing_is_written(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        reconciles_again(operator)
        versions, writes = cluster.versions(), operator.writes
        reconciles_again(operator, times=10)
        assert operator.writes == writes
        assert cluster.versions() == versions


def test_children_that_were_edited_or_deleted_are_mended_and_what_others_own_stays(
    cluster: Cluster, start: Start
) -> None:
    with start():
        cluster.apply(manifest("two"))
        cluster.settled("two")
        cluster.kubectl("annotate", "statefulset/two-eu-slow", "example.com/theirs=1")
        cluster.kubectl("scale", "statefulset/two-eu-slow", "--replicas=7")
        cluster.kubectl("delete", "service/two-syncer", "secret/two-syncer-tls", "configmap/two-job")
        cluster.kubectl("label", "networkpolicy/two-syncer", "diloco.dev/job-", "app.kubernetes.io/managed-by-")
        eventually("the replicas", lambda: cluster.get("statefulset", "two-eu-slow")["spec"]["replicas"] == 1)
        cluster.settled("two")
        assert cluster.get("statefulset", "two-eu-slow")["metadata"]["annotations"]["example.com/theirs"] == "1"


def test_a_pool_is_scaled_and_the_job_suspended_as_the_manifest_says(cluster: Cluster, start: Start) -> None:
    def replicas(name: str) -> int:
        replicas: int = cluster.get("statefulset", name)["spec"]["replicas"]
        return replicas

    with start():
        cluster.apply(manifest("two"))
        cluster.settled("two")
        cluster.apply(manifest("two", {"us-east": {"fast": 5}, "eu": {"slow": 1}}))
        eventually("five learners", lambda: replicas("two-us-east-fast") == 5)
        cluster.apply(manifest("two", suspend=True))
        eventually("no learners", lambda: replicas("two-us-east-fast") == replicas("two-eu-slow") == 0)


def test_a_second_operator_stands_by_and_takes_over_without_changing_anything(cluster: Cluster, start: Start) -> None:
    with start() as first:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        reconciles_again(first)
        versions = cluster.versions()
        with start() as second:
            eventually("the second stands by", lambda: second.stands_by)
            assert second.get("/readyz")[1].startswith(
                f"standing by: lease {cluster.namespace}/diloco-operator is held by"
            )
            assert second.metric("lease_held") == 0
            assert second.writes == 0
            assert first.stop() == EXIT_OK
            eventually("the second works", lambda: second.works)
            eventually("it has looked at the job", lambda: second.reconciles >= 3)
            assert second.writes == 0
            assert cluster.versions() == versions


def test_two_operators_that_want_different_things_do_not_fight_without_pause(
    cluster: Cluster, start: Start, namespace: str
) -> None:
    """Releases in two namespaces have a lease each, and each lets only its own namespace read a syncer's figures."""
    other = f"{namespace}-other"
    cluster.server.kubectl("create", "namespace", other)
    with start() as first, start(None, f"--operator-namespace={other}") as second:
        eventually("both work", lambda: first.works and second.works)
        cluster.apply(manifest("two"))
        cluster.settled("two")
        eventually("one gives way", lambda: "somebody keeps changing NetworkPolicy" in first.log + second.log)
        eventually("both do", lambda: all(each.log.count("keeps changing") >= 1 for each in (first, second)))
        for each in (first, second):
            reconciles_again(each)
        writes, reconciles = first.writes + second.writes, first.reconciles + second.reconciles
        for each in (first, second):
            reconciles_again(each, times=10)
        # A policy now and then, where each look at the job found one to write.
        written, looks = first.writes + second.writes - writes, first.reconciles + second.reconciles - reconciles
        assert 2 * written <= looks


def test_a_killed_operator_that_is_started_again_changes_nothing(cluster: Cluster, start: Start) -> None:
    with start() as first:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        reconciles_again(first)
        versions = cluster.versions()
        first.kill()
    # Or the new one would wait until the lease of the dead one has run out, as it should.
    cluster.kubectl("delete", "lease", "diloco-operator")
    with start() as second:
        eventually("it has looked at the job", lambda: second.reconciles >= 3)
        assert second.writes == 0
        assert cluster.versions() == versions


def test_an_operator_that_loses_its_lease_ends_at_once_and_writes_no_more(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        eventually("it works", lambda: operator.works)
        patch = '{"spec": {"holderIdentity": "another"}}'
        cluster.kubectl("patch", "lease", "diloco-operator", "--type=merge", f"--patch={patch}")
        assert operator.wait() == EXIT_LEASE_LOST
        assert "held by another" in operator.log


def test_a_job_that_is_deleted_is_left_alone_and_one_of_its_name_waits_for_its_children_to_go(
    cluster: Cluster, start: Start
) -> None:
    with start() as operator:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        cluster.kubectl("delete", "dilocojob", "two")
        eventually("it has heard of it", lambda: operator.metric("jobs") == 0)
        cluster.kubectl("delete", "service/two-syncer")
        cluster.apply(manifest("other", {"here": {"cpu": 1}}))
        eventually("another job is looked after", lambda: cluster.status("other").get("phase") == "Pending")
        assert "Service/two-syncer" not in cluster.children()

        cluster.apply(manifest("two"))
        eventually("names are taken", lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken")
        cluster.collect_garbage("two")
        eventually("its own children", lambda: "Service/two-syncer" in cluster.children())
        eventually("no more trouble", lambda: cluster.condition("two", "Degraded").get("reason") == "AsExpected")
        uid = cluster.get("dilocojob", "two")["metadata"]["uid"]
        mine = [child for name, child in cluster.children().items() if "/two-" in name]
        assert {owner["uid"] for child in mine for owner in child["metadata"]["ownerReferences"]} == {uid}


def test_in_a_namespace_that_is_being_deleted_nothing_is_made_anew(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        # Nobody carries the deletion out here, so job and children stay and the namespace is going for good.
        cluster.server.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
        cluster.kubectl("delete", "configmap", "two-job")
        eventually("it sees that", lambda: "is left alone" in operator.log)
        assert "ConfigMap/two-job" not in cluster.children()
        assert operator.metric("reconcile_errors_total") == 0
        assert "refused" not in cluster.condition("two", "Degraded").get("message", "")


def test_an_object_of_somebody_else_is_never_overwritten(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.kubectl("create", "configmap", "two-job", "--from-literal=precious=1")
        cluster.apply(manifest("two"))
        eventually("the name is taken", lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken")
        assert "two-job" in cluster.condition("two", "Degraded")["message"]
        assert cluster.get("configmap", "two-job")["data"] == {"precious": "1"}
        cluster.kubectl("delete", "configmap", "two-job")
        cluster.settled("two")


def test_what_the_operator_may_not_do_is_a_condition_that_names_it_and_clears_itself(
    cluster: Cluster, start: Start
) -> None:
    name = f"operator-of-{cluster.namespace}"
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
    # Everything but to patch StatefulSets.
    others = [
        {"apiGroups": ["", "policy", "networking.k8s.io", "diloco.dev", "coordination.k8s.io", "events.k8s.io"]}
        | {"resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get", "list", "watch"]},
    ]
    cluster.apply({**role, "rules": others})
    cluster.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
    with start(cluster.server.kubeconfig_for(name)) as operator:
        cluster.apply(manifest("two"))
        eventually("refused", lambda: cluster.condition("two", "Degraded").get("reason") == "ApplyRefused")
        assert "statefulsets" in cluster.condition("two", "Degraded")["message"]
        writes = operator.writes
        reconciles_again(operator, times=6)
        # Both sets are tried again once at most meanwhile, not every time.
        assert operator.writes - writes <= 2
        cluster.apply({**role, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
        cluster.settled("two")


@pytest.mark.skipif(HELM is None, reason="no helm here to render the chart's rules")
def test_the_rules_of_the_chart_are_enough(cluster: Cluster, start: Start) -> None:
    user = f"system:serviceaccount:{cluster.namespace}:diloco-operator"
    rendered = subprocess.run(
        [
            str(HELM),
            "template",
            "diloco-operator",
            str(CHART),
            f"--namespace={cluster.namespace}",
            f"--set=watchNamespaces={{{cluster.namespace}}}",
            "--show-only=templates/rbac.yaml",
            "--kube-version=1.34.0",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for one in filter(None, yaml.safe_load_all(rendered)):
        cluster.apply(one)
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{cluster.namespace}"]
    with start(cluster.server.kubeconfig_for(user, groups)) as operator:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        eventually("an event", lambda: cluster.get("events")["items"])
        eventually("a look at the pods", lambda: operator.metric("api_requests_total", 'resource="pods"') > 0)
        assert operator.metric("api_requests_total", 'code="403"') == 0
        assert "forbidden" not in operator.log.lower()
        assert operator.stop() == EXIT_OK


def test_faults_of_the_server_are_survived(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    with FaultProxy(cluster.server.kubeconfig, tmp_path) as proxy:
        proxy.fault("GET .*dilocojobs", times=2, code=500)
        proxy.fault("GET .*secrets", times=1, code=429, reason="TooManyRequests", headers={"Retry-After": "1"})
        proxy.fault("PATCH .*secrets/two-ca", code=429, reason="TooManyRequests", headers={"Retry-After": "1"})
        proxy.fault("PATCH .*configmaps", code=500)
        proxy.fault("PATCH .*services", code=0, after_asking=True)
        proxy.fault("PATCH .*dilocojobs/two/status", code=409, reason="Conflict")
        proxy.fault("PATCH .*dilocojobs/two/status", code=0, after_asking=True)
        with start(proxy.kubeconfig) as operator:
            cluster.apply(manifest("two"))
            cluster.settled("two")
            for _ in range(2):
                watches = proxy.asked("watch=")
                proxy.fault("watch=", times=2, code=410, reason="Expired")
                proxy.cut()
                eventually("new watches", lambda w=watches: proxy.asked("watch=") >= w + 9)  # type: ignore[misc]
            proxy.mend()
            cluster.kubectl("delete", "configmap", "two-job")
            cluster.apply(manifest("late", {"here": {"cpu": 1}}))
            eventually("mended", lambda: "ConfigMap/two-job" in cluster.children())
            eventually("the late job", lambda: cluster.status("late").get("phase") == "Pending")
            eventually("ready again", lambda: operator.works)
            assert "reconcile failed" not in operator.log


def test_an_api_server_that_goes_away_and_comes_back_changes_nothing_and_is_taken_up_again(
    cluster: Cluster, start: Start
) -> None:
    with start() as first:
        cluster.apply(manifest("two"))
        cluster.settled("two")
        reconciles_again(first)
        versions = cluster.versions()
        cluster.server.stop()
        try:
            eventually("it notices", lambda: "trying again" in first.log)
        finally:
            cluster.server.start()
        # On a slow machine it takes longer than the lease lasts: then it has ended, and is started again as by kubelet.
        if first.exit_code is not None:
            assert first.exit_code == EXIT_LEASE_LOST
        with start() if first.exit_code is not None else first as operator:
            eventually("it works", lambda: operator.works)
            assert cluster.versions() == versions
            cluster.apply(manifest("late", {"here": {"cpu": 1}}))
            eventually("the late job", lambda: cluster.status("late").get("phase") == "Pending")


def test_one_operator_looks_after_all_namespaces(cluster: Cluster, start: Start) -> None:
    other = Cluster(cluster.server, f"{cluster.namespace}-other")
    cluster.server.kubectl("create", "namespace", other.namespace)
    with start(None, "--namespaces="):
        for each in (cluster, other):
            each.apply(manifest("same"))
        for each in (cluster, other):
            each.settled("same")


def test_a_mistake_of_whoever_starts_it_is_one_line_and_exit_code_2(start: Start, tmp_path: Path) -> None:
    for kubeconfig, flag, named in (
        (tmp_path / "absent.kubeconfig", "--log-json", "absent.kubeconfig"),
        (None, "--health-address=nowhere", "host:port"),
        (None, "--poll-seconds=0", "poll_seconds"),
    ):
        with start(kubeconfig, flag) as operator:
            assert operator.wait() == EXIT_BAD_INPUT
            assert named in operator.log
            assert len(operator.log.splitlines()) == 1
