"""A job whose learners are mostly in another cluster, on nodes of which one can break."""

from testbed.virtual_cluster.clusters_world import FAR, ClustersWorld, clusters_job

BAD = "node-2"
SET = ("StatefulSet", "demo--far-new")
"""Of the other cluster."""
NODES = ("node-1", BAD, "node-3")


def six_elsewhere() -> ClustersWorld:
    """Six learners in another cluster and two at home, on nodes of the same names."""
    job = clusters_job()
    job["spec"]["regions"][1]["pools"][0]["learners"] = 6
    w = ClustersWorld(job=job)
    for pods in (w.pods, w.others[FAR].pods):
        pods.nodes = NODES
    w.run(60)
    w.run(160, every=20)
    assert w.status["learners"]["summary"] == "9/9"
    return w
