"""Each test has an event loop of its own, in virtual time if it is marked so."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.virtual_time import VirtualTimeLoop
from tests.unit.syncer.executor_scene import Scene, scene


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: waiting takes no time")


@pytest.fixture(autouse=True)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """The event loop of a test and of its fixtures."""
    virtual = request.node.get_closest_marker("virtual_time") is not None
    with asyncio.Runner(loop_factory=VirtualTimeLoop if virtual else None) as runner:
        yield runner


@pytest.fixture
def on(tmp_path: Path, runner: asyncio.Runner) -> Iterator[Scene]:
    """An executor, and an engine that orders what the test says."""
    context = scene(tmp_path)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))
