"""The file with the syncer's address: waited for, followed, bounded, and never believed when it is no address."""

import logging
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.wire.client.route import Route, RouteError, Target, read_address
from diloco.wire.errors import UnavailableError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "endpoint"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"syncer.example", "use HOST:PORT"),
        (b"syncer.example:0", "port from 1 to 65535"),
        (b"a.example:1\nb.example:2", "one line HOST:PORT"),
        (b"a\x00b.example:443", "one line HOST:PORT"),
        (b"\xff\xfe", "use HOST:PORT"),
        (b"a" * 513, "is larger than 512 bytes"),
    ],
    ids=str,
)
def test_a_file_without_an_address_is_waited_for_with_what_is_wrong(
    file: Path, content: bytes | None, told: str
) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RouteError, match=told) as caught:
        read_address(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    route = Route(file)
    with pytest.raises(UnavailableError, match=r"; waiting for the address$"):
        route.target()
    write_atomically(file, "syncer.example:443\n")
    assert route.target() == Target("syncer.example:443")


def test_a_directory_or_a_pipe_in_the_files_place_blocks_nobody(tmp_path: Path) -> None:
    with pytest.raises(RouteError, match="cannot be read"):
        read_address(tmp_path)


def test_a_new_address_is_followed_and_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write_atomically(file, "a.example:1\n")
    route = Route(file)
    assert route.target().address == "a.example:1"
    write_atomically(file, "[2001:db8::1]:2\n")
    assert [route.target().address for _ in range(3)] == ["[2001:db8::1]:2"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"the syncer's address is now [2001:db8::1]:2 ({file})"
    ]


def test_an_address_stays_in_use_while_the_file_has_none(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_atomically(file, "a.example:1\n")
    route = Route(file)
    assert route.target().address == "a.example:1"
    for content in ("", "nonsense", None):
        file.unlink() if content is None else write_atomically(file, content)
        assert [route.target().address for _ in range(3)] == ["a.example:1"] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert all(
        record.getMessage().endswith("the previous address, a.example:1, stays in use") for record in caplog.records
    )
    write_atomically(file, "b.example:2")
    assert route.target().address == "b.example:2"
