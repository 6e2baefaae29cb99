"""Processes of one learner, and documents, for all tests of a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.units import StartedUnit, unit_of
from tests.support.units import write_documents


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedUnit]:
    with unit_of(2, tmp_path_factory.mktemp("unit")) as unit:
        yield unit


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedUnit]:
    with unit_of(4, tmp_path_factory.mktemp("unit")) as unit:
        yield unit


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("text"))
