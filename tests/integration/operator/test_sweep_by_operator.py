"""The operator as a process sweeps what jobs left at another real API server, and never before it knows all jobs."""

import pytest

from diloco_operator import labels
from diloco_operator.api_server.kinds import CONFIG_MAP, REMOTE_CHILDREN, SECRET
from testbed.api_server.fault_proxy import FaultProxy
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from tests.support.operator_scene import Cluster, Start
from tests.support.remote_scene import Far
from tests.support.spread_job import ELSEWHERE, give_kubeconfig, spread


@pytest.fixture(autouse=True)
def _kubeconfig(cluster: Cluster, far: Far) -> None:
    """What leads to the other cluster is at home."""
    give_kubeconfig(cluster, far)


def there(far: Far, job: str) -> dict[str, str]:
    """The kinds of a job's objects there, and the job's uid in their labels."""
    found = {}
    for kind in REMOTE_CHILDREN:
        path = f"{kind.path(far.namespace)}?labelSelector={labels.JOB.replace('/', '%2F')}%3D{job}"
        for item in far.server.request("GET", path)[1]["items"]:
            found[kind.name] = str(item["metadata"]["labels"].get(labels.JOB_UID, ""))
    return found


def is_made(cluster: Cluster, far: Far, job: str) -> str:
    """Returns the job's uid."""
    cluster.apply(spread(job))
    wait_until(lambda: sorted(there(far, job)) == ELSEWHERE, f"{job} has its objects there")
    return str(cluster.get("dilocojob", job)["metadata"]["uid"])


def delete_by_force(cluster: Cluster, job: str) -> None:
    cluster.kubectl("delete", "dilocojob", job, "--wait=false")
    cluster.kubectl("patch", "dilocojob", job, "--type=merge", '--patch={"metadata": {"finalizers": null}}')
    assert not cluster.get("dilocojob", job)


def an_others(far: Far, name: str) -> None:
    own = {**labels.of_job("others", labels.LEARNER), **labels.of_home("another-home", "team", "uid-of-no-job")}
    far.server.put(CONFIG_MAP.path(far.namespace), {"metadata": {"name": name, "labels": own}})


def sweeps(operator: OperatorProcess) -> float:
    return operator.metric("swept_objects_total")


def test_a_cluster_that_hung_at_a_deletion_by_force_is_swept(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as operator:
        is_made(cluster, far, "one")
        is_made(cluster, far, "kept")
        an_others(far, "others")
        far.server.pause()
        try:
            wait_until(lambda: "ClusterUnreachable" in operator.log, "it is noticed")
            delete_by_force(cluster, "one")
        finally:
            far.server.resume()
        wait_until(lambda: not there(far, "one"), "it is swept")
        assert sorted(there(far, "kept")) == ELSEWHERE
        assert far.has(CONFIG_MAP, "others")
        assert sweeps(operator) == len(ELSEWHERE)
        assert f"cluster {cluster.namespace}/far: Secret one--away-slow-tls deleted" in operator.log


def test_what_the_last_job_left_is_swept_when_another_names_the_cluster(
    cluster: Cluster, far: Far, start: Start
) -> None:
    with start() as first:
        is_made(cluster, far, "one")
        first.stop()
    delete_by_force(cluster, "one")
    with start() as operator:
        wait_until(lambda: operator.works, "it works")
        assert sorted(there(far, "one")) == ELSEWHERE
        is_made(cluster, far, "two")
        wait_until(lambda: not there(far, "one"), "it is swept")
        assert sweeps(operator) == len(ELSEWHERE)
        assert "Traceback" not in operator.log


def test_nothing_is_swept_while_jobs_cannot_be_listed(
    cluster: Cluster, far: Far, start: Start, proxy: FaultProxy
) -> None:
    with start() as first:
        uid = is_made(cluster, far, "kept")
        is_made(cluster, far, "one")
        first.stop()
    delete_by_force(cluster, "one")
    # Whether there is such a kind is asked with another limit, and that is answered.
    lists = "GET .*dilocojobs[?].*limit=500"
    proxy.fault(lists, times=-1, code=503)
    with start(proxy.kubeconfig) as blind:
        wait_until(lambda: proxy.asked(lists) >= 4, "it lists jobs in vain")
        assert sorted(there(far, "one")) == ELSEWHERE
        assert sweeps(blind) == 0
    proxy.mend()
    with start() as operator:
        wait_until(lambda: not there(far, "one"), "it is swept")
        assert there(far, "kept") == dict.fromkeys(ELSEWHERE, uid)
        assert sweeps(operator) == len(ELSEWHERE)


def test_a_home_that_is_restored_gets_its_names_back(cluster: Cluster, far: Far, start: Start) -> None:
    with start() as first:
        old = is_made(cluster, far, "one")
        first.stop()
    delete_by_force(cluster, "one")
    cluster.collect_garbage("one")
    cluster.apply(spread("one"))
    new = str(cluster.get("dilocojob", "one")["metadata"]["uid"])
    assert there(far, "one") == dict.fromkeys(ELSEWHERE, old)
    with start() as operator:
        wait_until(lambda: there(far, "one") == dict.fromkeys(ELSEWHERE, new), "its own objects are there")
        assert sweeps(operator) == len(ELSEWHERE)
        wait_until(lambda: cluster.condition("one", "Degraded").get("reason") != "NameTaken", "no name is taken")
        assert far.has(SECRET, "one--away-slow-tls")
