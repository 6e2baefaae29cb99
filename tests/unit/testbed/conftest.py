from pathlib import Path

import pytest

from testbed.kind.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)
