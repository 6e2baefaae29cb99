from pathlib import Path

import pytest

from testbed.kind.cache import Cache, ClusterRecord
from testbed.kind.host_limits import put_back, raise_for_clusters


@pytest.fixture
def limit(tmp_path: Path) -> Path:
    path = tmp_path / "max_user_instances"
    path.write_text("128\n")
    return path


def test_it_stays_while_there_are_clusters(cache: Cache, limit: Path) -> None:
    raise_for_clusters(cache, limit)
    cache.write(cache.state.with_cluster("diloco-a", ClusterRecord("x")))
    put_back(cache, limit)
    assert limit.read_text() == "1024\n"


@pytest.mark.parametrize(
    ("before", "meanwhile", "after"),
    [("128", "1024", "128"), ("4096", "4096", "4096"), ("128", "512", "512")],
    ids=["raised", "high enough", "changed by somebody"],
)
def test_it_is_put_back_unless_somebody_else_has_set_it(
    cache: Cache, limit: Path, before: str, meanwhile: str, after: str
) -> None:
    limit.write_text(f"{before}\n")
    raise_for_clusters(cache, limit)
    raise_for_clusters(cache, limit)
    assert limit.read_text() == f"{max(before, '1024', key=int)}\n"
    limit.write_text(f"{meanwhile}\n")
    put_back(cache, limit)
    assert limit.read_text() == f"{after}\n"


def test_another_kind_of_host_has_none(cache: Cache, tmp_path: Path) -> None:
    raise_for_clusters(cache, tmp_path / "missing")
    put_back(cache, tmp_path / "missing")
