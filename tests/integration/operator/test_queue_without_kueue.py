"""A job with a queue where there is no Kueue, or the operator may not use it."""

from testbed.kind.waiting import wait_until
from tests.support.operator_scene import Cluster, Start, manifest


def test_without_kueue_the_job_says_so_and_nothing_is_made(cluster: Cluster, start: Start) -> None:
    off = "spec.queue: the operator was installed without kueue.enabled; set it in the chart's values"
    missing = "spec.queue: the cluster has no workloads.kueue.x-k8s.io of version v1beta2; install Kueue"
    cluster.apply(manifest("queued", queue={"name": "team"}))
    for flags, why in (((), off), (("--kueue",), missing)):
        with start(None, *flags) as operator:
            wait_until(lambda: cluster.condition("queued", "Degraded").get("message") == why, why)  # noqa: B023
            assert cluster.condition("queued", "Degraded")["reason"] == "QueueUnusable"
            cluster.has_job("two")
            assert operator.works
            assert {one["metadata"]["labels"]["diloco.dev/job"] for one in cluster.children().values()} == {"two"}
            assert "kueue" not in operator.get("/readyz")[1]
