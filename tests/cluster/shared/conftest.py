"""Fixtures for tests whose jobs are in one cluster side by side, as those of tenants are: each changes only its own.

Whoever takes nodes or the operator away is in `alone`. Deleting the operator's pods is allowed here: another one comes.
"""

import os

import pytest

from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.project_images import Images
from tests.cluster.conftest import OPERATOR, SHARED, numbered_bed


@pytest.fixture(scope="session")
def bed() -> Bed:
    """All workers have the same cluster."""
    return numbered_bed(SHARED if "PYTEST_XDIST_WORKER" in os.environ else 1)


@pytest.fixture(scope="session")
def chart(bed: Bed, images: Images) -> Release:
    """The operator, installed once for all workers. It stays, as none of them knows whether it is the last."""
    with bed.cache.lock(f"chart-{bed.cluster.name}"):
        charts.install(bed, images, OPERATOR)
    return OPERATOR
