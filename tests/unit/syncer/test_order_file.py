"""A file with orders about single learners, while the syncer runs."""

import logging
import os
from pathlib import Path

import pytest

from diloco.core.engine.events import LearnerReadmitted
from diloco.spec.names.learner_orders import MAXIMUM_BYTES, READMITTED_FILE
from diloco.syncer.order_file import OrderFile

EPOCH = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / READMITTED_FILE


@pytest.fixture
def file(path: Path) -> OrderFile:
    return OrderFile(path, EPOCH, LearnerReadmitted)


def test_a_missing_file_says_nothing(file: OrderFile) -> None:
    assert file.poll() == ()


def test_a_changed_file_is_read_once(file: OrderFile, path: Path) -> None:
    path.write_text("east/a/0 4 4000001\n")
    assert file.poll() == (LearnerReadmitted("east/a/0", 4_000_001),)
    assert file.poll() == ()
    path.write_text("east/a/0 4 4000001\neast/a/1 4 4000002\n")
    assert file.poll() == (LearnerReadmitted("east/a/0", 4_000_001), LearnerReadmitted("east/a/1", 4_000_002))


def test_orders_to_an_earlier_start_of_the_syncer_have_no_effect(file: OrderFile, path: Path) -> None:
    path.write_text("east/a/0 3 0\neast/a/1 4 0\n")
    assert file.poll() == (LearnerReadmitted("east/a/1", 0),)


@pytest.mark.parametrize("kind", ["too large", "a pipe"])
def test_a_file_that_cannot_be_used_is_logged(
    kind: str, file: OrderFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.write_text("east/a/0 4 1\n" * (MAXIMUM_BYTES // 12))
    assert file.poll() == ()
    assert file.poll() == ()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
