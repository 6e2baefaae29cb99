from pathlib import Path
from typing import Any

import pytest

from testbed import prometheus
from testbed.kind import tools
from testbed.kind.cache import Cache
from tests.support.rendered_chart import Render, Rendered, helm_template


@pytest.fixture(scope="session")
def helm() -> Path:
    found = tools.helm_if_there(Cache.of_user())
    if found is None:
        pytest.skip("no helm: neither on PATH nor built yet (`make kind-up` builds one)")
    return found


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """The chart with these values."""

    def rendered(**values: Any) -> Rendered:
        return helm_template(helm, values)

    return rendered


@pytest.fixture(scope="session")
def plain(render: Render) -> Rendered:
    """The chart without any values."""
    return render()


@pytest.fixture(scope="session")
def promtool() -> Path:
    found = prometheus.if_there(Cache.of_user())
    if found is None:
        pytest.skip(prometheus.WHY_NONE)
    return found.promtool
