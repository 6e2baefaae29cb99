"""One job over two real API servers, with the operator as a process at one of them."""

import json
from typing import Any

import pytest

from diloco.runtime.process.exits import EXIT_OK
from diloco_operator.api_server.kinds import CONFIG_MAP, EVENT, REMOTE_CHILDREN, SECRET, STATEFUL_SET
from diloco_operator.cluster_state import CLUSTER_LABEL, IN_USE
from diloco_operator.decide.clusters import FINALIZER
from testbed.api_server.server import ApiServer
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import EVERYTHING, Cluster, Start, manifest, reconciles_again
from tests.support.remote_scene import Far
from tests.support.spread_job import ELSEWHERE, give_kubeconfig, spread


def kinds_there(far: Far) -> list[str]:
    """The kinds of all objects that an operator has made there."""
    found = []
    for kind in REMOTE_CHILDREN:
        path = f"{kind.path(far.namespace)}?labelSelector=app.kubernetes.io/managed-by%3Ddiloco-operator"
        found += [kind.name] * len(far.server.request("GET", path)[1]["items"])
    return sorted(found)


def region(cluster: Cluster, job: str, name: str = "away") -> dict[str, Any]:
    found = [one for one in cluster.status(job).get("regions", []) if one["name"] == name]
    return found[0] if found else {}


def finalizers(cluster: Cluster, job: str) -> list[str]:
    found: list[str] = cluster.get("dilocojob", job).get("metadata", {}).get("finalizers", [])
    return found


def kept_for(cluster: Cluster) -> list[str]:
    """The finalizers of the Secret with the kubeconfig."""
    found: list[str] = cluster.get("secret", "far")["metadata"].get("finalizers", [])
    return found


def delete(cluster: Cluster, job: str) -> None:
    cluster.kubectl("delete", "dilocojob", job, "--wait=false")


def there_is(cluster: Cluster, job: str) -> bool:
    return bool(cluster.get("dilocojob", job))


def is_made(cluster: Cluster, far: Far, job: str = "one") -> None:
    give_kubeconfig(cluster, far)
    cluster.apply(spread(job))
    wait_until(lambda: kinds_there(far) == ELSEWHERE, "its objects are in the other cluster")


@pytest.mark.core
def test_a_job_has_its_objects_in_both_clusters_until_it_is_deleted(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as operator:
        is_made(cluster, far)
        assert finalizers(cluster, "one") == [FINALIZER]
        assert kept_for(cluster) == [IN_USE]
        wait_until(lambda: region(cluster, "one").get("cluster") == "far", "the status names the cluster")
        at_home = {key.split("/")[0] for key in cluster.children()}
        assert "Deployment" in at_home
        assert sum(key.startswith("StatefulSet/") for key in cluster.children()) == 1
        far.server.request("DELETE", CONFIG_MAP.path(far.namespace, "one-job"))
        wait_until(lambda: kinds_there(far) == ELSEWHERE, "it is made anew")
        delete(cluster, "one")
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        # Nothing collects garbage here: what is gone there was deleted by the operator.
        assert kinds_there(far) == []
        assert operator.metric("jobs_left_behind_total") == 0
        wait_until(lambda: kept_for(cluster) == [], "its kubeconfig may be deleted")


def test_a_job_is_deleted_without_a_cluster_that_hangs_in_bounded_time(
    cluster: Cluster, far: Far, start: Start
) -> None:
    with start(None, "--remote-deletion-seconds=3") as operator:
        is_made(cluster, far)
        far.server.pause()
        try:
            delete(cluster, "one")
            cluster.apply(manifest("beside", {"here": {"cpu": 1}}))
            wait_until(lambda: "StatefulSet/beside--here-cpu" in cluster.children(), "another job has its objects")
            wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        finally:
            far.server.resume()
        assert operator.metric("jobs_left_behind_total", 'cluster="far"') == 1
        (told,) = [one for one in cluster.items(EVENT) if one["reason"] == "ChildrenLeft"]
        assert "left in cluster far (ClusterUnreachable)" in told["note"]
        assert told["type"] == "Warning"


@pytest.mark.core
def test_an_operator_that_is_killed_in_a_deletion_goes_on_with_it(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as first:
        is_made(cluster, far)
        far.server.stop()
        try:
            delete(cluster, "one")
            wait_until(lambda: "ClusterUnreachable" in first.log, "it is noticed")
            first.kill()
        finally:
            far.server.start()
    assert kinds_there(far) == ELSEWHERE
    assert finalizers(cluster, "one") == [FINALIZER]
    with start():
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        assert kinds_there(far) == []


def test_a_deleted_kubeconfig_is_used_until_no_job_names_it(cluster: Cluster, far: Far, start: Start) -> None:
    # A missing right would be told before it.
    far.allow(lost_pods=True)
    with start():
        is_made(cluster, far)
        cluster.kubectl("delete", "secret", "far", "--wait=false")
        wait_until(lambda: cluster.condition("one", "Degraded").get("reason") == "KubeconfigDeleted", "it is told")
        far.server.request("DELETE", CONFIG_MAP.path(far.namespace, "one-job"))
        wait_until(lambda: kinds_there(far) == ELSEWHERE, "it is made anew")
        assert kept_for(cluster) == [IN_USE]
        delete(cluster, "one")
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        assert kinds_there(far) == []
        wait_until(lambda: not cluster.get("secret", "far"), "its kubeconfig is gone")


def test_a_namespace_is_gone_only_once_nothing_is_left_elsewhere(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as first:
        is_made(cluster, far)
        far.server.pause()
        try:
            cluster.server.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
            # As the controller of namespaces does, which this server lacks.
            for kind in ("secrets", "leases", "dilocojobs"):
                cluster.kubectl("delete", kind, "--all", "--wait=false")
            first.kill()
        finally:
            far.server.resume()
    elsewhere = f"{cluster.namespace}-other"
    cluster.server.kubectl("create", "namespace", elsewhere)
    with start(None, f"--operator-namespace={elsewhere}"):
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        assert kinds_there(far) == []
        wait_until(lambda: not cluster.get("secret", "far"), "its kubeconfig is gone")


def test_an_operator_installed_elsewhere_goes_on_with_a_job(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as first:
        is_made(cluster, far)
        assert first.stop() == EXIT_OK
    elsewhere = f"{cluster.namespace}-other"
    cluster.server.kubectl("create", "namespace", elsewhere)
    cluster.kubectl("delete", "lease", "diloco-jobs")  # it expires
    with start(None, f"--operator-namespace={elsewhere}", "--lease-name=another") as second:
        reconciles_again(second)
        assert cluster.condition("one", "Degraded").get("reason") != "NameTaken"
        delete(cluster, "one")
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        assert kinds_there(far) == []


def test_an_operator_that_may_not_read_homes_id_says_so(cluster: Cluster, far: Far, start: Start) -> None:
    give_kubeconfig(cluster, far)
    with start(cluster.grant("worker", EVERYTHING)):
        cluster.apply(spread("one"))
        wait_until(lambda: "home's id" in region(cluster, "one").get("message", ""), "it is said")
        assert "namespaces kube-system" in region(cluster, "one")["message"]
        assert kinds_there(far) == []


def test_a_job_whose_cluster_has_no_secret_says_so_and_can_be_deleted(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as operator:
        cluster.apply(spread("one"))
        wait_until(lambda: region(cluster, "one").get("reason") == "KubeconfigUnusable", "it is said")
        assert "Secret far" in region(cluster, "one")["message"]
        assert cluster.condition("one", "Degraded")["status"] == "True"
        give_kubeconfig(cluster, far)
        wait_until(lambda: kinds_there(far) == ELSEWHERE, "it goes on")
        cluster.kubectl("label", "secret", "far", f"{CLUSTER_LABEL}-")
        wait_until(lambda: region(cluster, "one").get("reason") == "KubeconfigUnusable", "it is said")
        assert kinds_there(far) == ELSEWHERE
        cluster.kubectl("delete", "secret", "far")
        give_kubeconfig(cluster, far)
        delete(cluster, "one")
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
        assert kinds_there(far) == []
        assert "reconcile failed" not in operator.log


def without_away(job: str) -> dict[str, Any]:
    body = spread(job)
    body["spec"]["regions"].pop()
    return body


def obeys(far: Far) -> None:
    """The controller of StatefulSets in the other cluster has seen what the operator wants."""
    for one in far.server.request("GET", STATEFUL_SET.path(far.namespace))[1]["items"]:
        seen = {"observedGeneration": one["metadata"]["generation"], "replicas": one["spec"]["replicas"]}
        far.server.set_status(STATEFUL_SET.path(far.namespace, one["metadata"]["name"]), seen)


def replicas_there(far: Far) -> list[int]:
    return [one["spec"]["replicas"] for one in far.server.request("GET", STATEFUL_SET.path(far.namespace))[1]["items"]]


def test_a_cluster_is_given_up_by_a_running_job_and_gained_again(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as operator:
        is_made(cluster, far)
        wait_until(lambda: region(cluster, "one").get("place"), "the status says where it is")
        far.server.pause()
        try:
            cluster.apply(without_away("one"))
            wait_until(lambda: cluster.status("one").get("formerClusters"), "the status keeps the cluster")
            told = "of removed regions"
            wait_until(lambda: told in cluster.condition("one", "Degraded").get("message", ""), "it is said")
            operator.kill()
        finally:
            far.server.resume()
    with start():
        wait_until(lambda: replicas_there(far) == [0], "its learners are told to leave")
        assert kinds_there(far) == ELSEWHERE
        obeys(far)
        wait_until(lambda: kinds_there(far) == [], "its objects go")
        wait_until(lambda: "formerClusters" not in cluster.status("one"), "it is forgotten")
        assert cluster.status("one")["observedGeneration"] == 2
        cluster.apply(spread("one"))
        wait_until(lambda: kinds_there(far) == ELSEWHERE, "it is gained again")


def test_a_secret_that_leads_elsewhere_leaves_no_learner_unnamed(
    cluster: Cluster, far: Far, start: Start, far_server: ApiServer
) -> None:
    other = Far(far_server)
    with start():
        is_made(cluster, far)
        place = wait_until(lambda: region(cluster, "one").get("place"), "the status says where it is")
        give_kubeconfig(cluster, other)
        wait_until(lambda: cluster.condition("one", "Degraded").get("reason") == "ClusterMoved", "it is said")
        assert place in cluster.condition("one", "Degraded")["message"]
        assert (kinds_there(other), kinds_there(far)) == ([], ELSEWHERE)
        cluster.kubectl("annotate", "dilocojob", "one", f"diloco.dev/give-up-place={place}")
        wait_until(lambda: kinds_there(other) == ELSEWHERE, "the region goes on in the other place")
        wait_until(lambda: any(one["reason"] == "ChildrenLeft" for one in cluster.items(EVENT)), "an event names it")


def test_without_the_right_to_finalizers_a_job_is_made_at_home_only(
    cluster: Cluster, far: Far, start: Start, server: ApiServer
) -> None:
    """As with a chart of another version and an operator of this one."""
    name = f"old-{cluster.namespace}"
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    server.kubectl("apply", "--filename=-", text=json.dumps({**body, "rules": OLD_RULES}))
    server.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={name}")
    server.until_rules_hold()
    give_kubeconfig(cluster, far)
    with start(server.kubeconfig_for(name)) as operator:
        cluster.apply(spread("one"))
        wait_until(lambda: "nothing is created in other clusters" in operator.log, "it is said")
        wait_until(lambda: cluster.status("one").get("phase") == "Pending", "it has a status")
        assert "Deployment/one-syncer" in cluster.children()
        assert kinds_there(far) == []


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


_ALL = ["get", "list", "watch", "create", "patch", "update", "delete"]
OLD_RULES = [
    _rule("diloco.dev", ["dilocojobs"], ["get", "list", "watch", "delete"]),
    _rule("diloco.dev", ["dilocojobs/status"], ["patch"]),
    *(_rule(group, ["*"], _ALL) for group in ("", "apps", "policy", "networking.k8s.io")),
    *(_rule(group, ["*"], _ALL) for group in ("events.k8s.io", "coordination.k8s.io")),
]
"""Everything but to change a job itself."""


def test_objects_of_another_home_are_not_touched(cluster: Cluster, far: Far, start: Start) -> None:
    give_kubeconfig(cluster, far)
    theirs = {"name": "one--away-slow", "labels": {"whose": "theirs"}}
    set_spec = {
        "serviceName": "x",
        "replicas": 0,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }
    far.server.put(STATEFUL_SET.path(far.namespace), {"metadata": theirs, "spec": set_spec})
    with start():
        cluster.apply(spread("one"))
        wait_until(lambda: cluster.condition("one", "Degraded").get("reason") == "NameTaken", "it is said")
        assert "in cluster far" in cluster.condition("one", "Degraded")["message"]
        delete(cluster, "one")
        wait_until(lambda: not there_is(cluster, "one"), "the job is gone")
    assert far.has(STATEFUL_SET, "one--away-slow")
    assert not far.has(SECRET, "one--away-slow-tls")
