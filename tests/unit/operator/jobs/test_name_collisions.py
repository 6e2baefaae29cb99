"""Two jobs never write to the same object; that their objects have other names is in `test_names`."""

from testbed.virtual_cluster.cluster_world import ClusterWorld


def test_an_object_of_another_job_is_left_alone_although_it_is_known() -> None:
    w = ClusterWorld(job_names=("demo", "other"))
    w.run(60)
    secret = w.home.objects["Secret", "demo-syncer-tls"]
    secret["metadata"] |= {
        "ownerReferences": w.home.of_kind("Secret")["other-ca"]["metadata"]["ownerReferences"],
        "labels": secret["metadata"]["labels"] | {"diloco.dev/job": "other"},
        "resourceVersion": "100000",
    }
    secret["data"] = {"mine": "eA=="}
    w.api.writes.clear()
    w.reconcile("demo")
    assert not [write for write in w.api.writes if write[1:] == ("Secret", "demo-syncer-tls")]
    assert w.condition("Degraded")["reason"] == "NameTaken"
    assert "names taken by another owner: Secret demo-syncer-tls" in w.condition("Degraded")["message"]
