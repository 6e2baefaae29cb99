"""Bytes by region in a checkpoint's folder."""

import json
import logging
from pathlib import Path

import pytest

from diloco.spec.syncer_status import BytesByKind, RegionBytes
from diloco.syncer.disk.byte_counts import FILE, read_counts, write_counts

COUNTS = (
    RegionBytes(region="east", up=BytesByKind(bulk=2**60, again=3)),
    RegionBytes(region="west", down=BytesByKind(control=1)),
)


def test_counts_come_back_as_they_were(tmp_path: Path) -> None:
    write_counts(tmp_path, COUNTS)
    assert read_counts(tmp_path) == COUNTS


def test_a_checkpoint_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    assert read_counts(tmp_path) == ()


@pytest.mark.parametrize("text", ["", "{", "7", "[7]", '[{"region": "east", "up": {"bulk": -1}}]', '[{"up": {}}]'])
def test_damaged_counts_begin_at_zero_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert read_counts(tmp_path) == ()
    (record,) = caplog.records
    assert f"{tmp_path / FILE}: bytes by region are counted from zero" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps([{"region": "east", "up": {"bulk": 4, "new": 1}, "new": 2}]))
    assert read_counts(tmp_path) == (RegionBytes(region="east", up=BytesByKind(bulk=4)),)
