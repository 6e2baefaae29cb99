"""Payloads kept for a replay: found again by their digest."""

from pathlib import Path

import pytest
import torch

from diloco.runtime.files import UnusableFileError
from diloco.syncer.disk.payload_files import keep_payload, payload_path, read_payload
from diloco.syncer.store import digest_of
from tests.support.watched_disk import watch_disk

PAYLOAD = torch.arange(200, dtype=torch.uint8)
DIGEST = digest_of(PAYLOAD).hex()


def test_a_payload_comes_back_and_is_kept_once(tmp_path: Path) -> None:
    keep_payload(tmp_path, DIGEST, PAYLOAD)
    keep_payload(tmp_path, DIGEST, PAYLOAD)
    assert torch.equal(read_payload(tmp_path, DIGEST, 200), PAYLOAD)
    assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_payloads_share_a_folder_by_the_first_two_digits(tmp_path: Path) -> None:
    other = DIGEST[:2] + "0" * 30
    keep_payload(tmp_path / "payloads", DIGEST, PAYLOAD)
    keep_payload(tmp_path / "payloads", other, PAYLOAD)
    found = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.bin"))
    assert found == sorted(Path("payloads") / DIGEST[:2] / f"{digest}.bin" for digest in (DIGEST, other))


def test_a_merge_does_not_wait_until_payloads_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = watch_disk(monkeypatch)
    keep_payload(tmp_path, DIGEST, PAYLOAD)
    assert [what for what, _, _ in done] == ["named"]


def test_one_that_is_missing_short_or_changed_is_named(tmp_path: Path) -> None:
    path = payload_path(tmp_path, DIGEST)
    with pytest.raises(UnusableFileError, match=f"{path}: No such file"):
        read_payload(tmp_path, DIGEST, 200)
    keep_payload(tmp_path, DIGEST, PAYLOAD)
    with pytest.raises(UnusableFileError, match="200 bytes, not the 201"):
        read_payload(tmp_path, DIGEST, 201)
    path.write_bytes(bytes(200))
    with pytest.raises(UnusableFileError, match="not what was pushed"):
        read_payload(tmp_path, DIGEST, 200)
