import os
from pathlib import Path

import pytest

from diloco.runtime.files import (
    UnusableFileError,
    make_writable_directory,
    read_json,
    sha256_bytes,
    sha256_file,
    write_atomically,
    write_json_atomically,
)
from tests.support.machine_limits import files_of_at_most, full_disk


def test_what_is_written_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, "neu, größer")
    assert path.read_text(encoding="utf-8") == "neu, größer"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with files_of_at_most(1000), pytest.raises(OSError, match="too large"):
        write_atomically(path, bytes(2000))
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_json_comes_back_and_what_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json_atomically(path, {"a": [1, 2.5, None]})
    assert read_json(path) == {"a": [1, 2.5, None]}
    path.unlink()
    with pytest.raises(UnusableFileError, match=r"file\.json: No such file"):
        read_json(path)
    path.write_text("{")
    with pytest.raises(UnusableFileError, match=r"file\.json: not JSON"):
        read_json(path)
    path.write_text("[" + " " * 100 + "]")
    with pytest.raises(UnusableFileError, match=r"file\.json: larger than 50 bytes"):
        read_json(path, limit_bytes=50)
    os.mkfifo(tmp_path / "pipe")  # which is not waited for
    with pytest.raises(UnusableFileError, match=r"pipe: is not a regular file; use one"):
        read_json(tmp_path / "pipe")


def test_a_files_digest_is_that_of_its_content(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == sha256_bytes(content)


def test_a_directory_is_made_with_its_parents_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    make_writable_directory(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFileError, match="file: is a file; use a directory"):
        make_writable_directory(tmp_path / "file")
    with pytest.raises(UnusableFileError, match="cannot be written to"):
        make_writable_directory(Path("/proc/nowhere"))


def test_a_full_disk_is_refused_unless_the_work_goes_on_without_it(tmp_path: Path) -> None:
    with full_disk(tmp_path) as disk:
        with pytest.raises(UnusableFileError, match="No space left on device"):
            make_writable_directory(disk)
        make_writable_directory(disk, even_if_full=True)
