"""What changes an object again and again, on a real API server: it is named with the field, as long as it lasts."""

import pytest

from testbed.kind.waiting import wait_until
from tests.support.operator_scene import Cluster, Start, manifest

POOL = "two--us-east-fast"


def replicas(cluster: Cluster) -> int:
    found: int = cluster.get("statefulset", POOL)["spec"]["replicas"]
    return found


@pytest.mark.parametrize(
    ("scaled", "who"),
    [(0, "an autoscaler, kubectl scale"), (1, 'conflict with "kubectl"'), (9, "an autoscaler, kubectl scale")],
)
def test_what_keeps_scaling_a_pool_is_a_cause_with_field_and_values(
    cluster: Cluster, start: Start, scaled: int, who: str
) -> None:
    with start():
        cluster.apply(manifest("two"))
        cluster.settled("two")
        wanted = replicas(cluster)

        def told() -> bool:
            if replicas(cluster) == wanted:
                cluster.kubectl("scale", "statefulset", POOL, f"--replicas={scaled}")
            return cluster.condition("two", "Degraded").get("reason") == "ObjectReverted"

        wait_until(told, "it is told")
        message = cluster.condition("two", "Degraded")["message"]
        assert f"StatefulSet {POOL}" in message
        assert f".spec.replicas is {scaled} instead of {wanted}" in message
        assert who in message
