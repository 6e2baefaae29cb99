"""What is applied for a new job."""

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from testbed.virtual_cluster.operator_world import World, job_object


@pytest.mark.parametrize("nodes", [1, 2])
def test_learners_of_two_nodes_have_two_pods_that_serve_each_other(nodes: int) -> None:
    pool: dict[str, Any] = {"name": "old", "learners": 3, "nodesPerLearner": nodes}
    w = World(job=job_object(regions=[{"name": "us-west", "pools": [pool]}]))
    w.reconcile()
    assert w.home.objects["StatefulSet", "demo--us-west-old"]["spec"]["replicas"] == 3 * nodes
    held = w.home.objects["Secret", "demo--us-west-old-tls"]["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(held["tls.crt"]))
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert (ExtendedKeyUsageOID.SERVER_AUTH in uses) == (nodes > 1)
