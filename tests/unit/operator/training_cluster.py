"""A virtual cluster in which a job trains."""

from testbed.virtual_cluster.cluster_world import ClusterWorld


def training() -> ClusterWorld:
    """After a minute: every learner makes steps."""
    world = ClusterWorld()
    world.run(60)
    assert world.status()["phase"] == "Training"
    return world
