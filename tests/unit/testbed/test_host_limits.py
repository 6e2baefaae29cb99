"""The kernel's limit is raised while there are clusters, and restored after the last one."""

from pathlib import Path

import pytest

from testbed.kind.cache import Cache, ClusterRecord
from testbed.kind.host_limits import put_back, raise_for_clusters


@pytest.fixture
def limit(tmp_path: Path) -> Path:
    path = tmp_path / "max_user_instances"
    path.write_text("128\n")
    return path


def test_it_is_raised_and_put_back(cache: Cache, limit: Path) -> None:
    raise_for_clusters(cache, limit)
    raise_for_clusters(cache, limit)
    assert limit.read_text() == "1024\n"
    put_back(cache, limit)
    assert limit.read_text() == "128\n"


def test_it_stays_while_there_are_clusters(cache: Cache, limit: Path) -> None:
    raise_for_clusters(cache, limit)
    cache.write(cache.state.with_cluster("diloco-a", ClusterRecord("x")))
    put_back(cache, limit)
    assert limit.read_text() == "1024\n"


def test_a_higher_one_is_left_alone(cache: Cache, limit: Path) -> None:
    limit.write_text("4096\n")
    raise_for_clusters(cache, limit)
    put_back(cache, limit)
    assert limit.read_text() == "4096\n"


def test_one_that_somebody_changed_meanwhile_is_left_alone(cache: Cache, limit: Path) -> None:
    raise_for_clusters(cache, limit)
    limit.write_text("512\n")
    put_back(cache, limit)
    assert limit.read_text() == "512\n"


def test_another_kind_of_host_has_none(cache: Cache, tmp_path: Path) -> None:
    raise_for_clusters(cache, tmp_path / "missing")
    put_back(cache, tmp_path / "missing")
