"""Names of backups sort by time, and a manifest that was changed anywhere is never believed."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.syncer.backup.manifest import (
    BackupError,
    BackupFile,
    BackupManifest,
    BackupName,
    complete,
    read_manifest,
    write_manifest,
)

TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # bounds
HEX = "0123456789abcdef"
WHATS = st.integers(1, 10**9).map(lambda number: f"{number:06d}") | st.just("model")
NAMES = st.builds(
    lambda time, training, what, *rest: BackupName(time.replace(microsecond=0), training, what, *rest),
    TIMES,
    st.text(HEX, min_size=16, max_size=16),
    WHATS,
    st.text(HEX, min_size=8, max_size=8),
    st.text(HEX, min_size=8, max_size=8),
)
MANIFEST = BackupManifest(
    format=1,
    name=f"20261123T020000Z-0123456789abcdef-000001-{'0' * 16}",
    job="made",
    layout="ab.cd",
    model_parameters=10,
    model_fragments=2,
    step=7,
    files={"00000.safetensors": BackupFile(size_bytes=40, sha256="0" * 64)},
)


@given(NAMES)
def test_a_name_is_read_as_it_was_written(name: BackupName) -> None:
    assert BackupName.parse(str(name)) == name


@given(st.lists(NAMES, unique=True), TIMES)
def test_a_new_backup_is_the_newest_whatever_the_clock_says(names: list[BackupName], now: datetime) -> None:
    made = BackupName.after(max(names, default=None), now, "0" * 16, "000001", "0" * 16)
    assert complete([f"{name}.json" for name in [made, *names]])[-1] == made


@given(st.text())
def test_any_other_name_is_no_backup(text: str) -> None:
    name = BackupName.parse(text)
    assert name is None or str(name) == text


@given(st.data())
def test_a_manifest_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    content = bytearray(write_manifest(MANIFEST))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        read = read_manifest(bytes(content), MANIFEST.name)
    except BackupError:
        return
    assert read == MANIFEST  # the byte was between two values


@given(st.binary(max_size=200))
def test_no_other_content_is_a_manifest(content: bytes) -> None:
    with pytest.raises(BackupError):
        read_manifest(content, MANIFEST.name)
