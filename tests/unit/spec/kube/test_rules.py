"""Resources of a container, beyond what a table of wrong ones shows."""

import pytest

from diloco.spec.kube.rules import resources


@pytest.mark.parametrize(
    ("requests", "limits"),
    [
        ({"memory": "1Gi"}, {"memory": "1024Mi"}),
        ({"cpu": "0"}, {}),
        ({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1000m"}),
        ({}, {"nvidia.com/gpu": "9" * 60}),
        ({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}),
        ({"example.kubernetes.io/part": "0.5"}, {}),
    ],
)
def test_what_kubernetes_accepts_is_accepted(requests: dict[str, str], limits: dict[str, str]) -> None:
    assert [*resources(requests, limits)] == []
