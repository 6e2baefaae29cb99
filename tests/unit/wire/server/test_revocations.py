"""The syncer's list of revoked certificates: read when it changes, bounded, and never taken for empty by mistake."""

import asyncio
import datetime as dt
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.wire.errors import RevokedError
from diloco.wire.server.revocations import Revocations, read_revoked
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.files import TlsFileError

FUTURE = "2999-01-01T00:00:00Z"
PAST = "2000-01-01T00:00:00Z"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "revoked.txt"


@pytest.fixture
def certificate(tmp_path: Path) -> bytes:
    return Authority(tmp_path).learner("job", "a/b").certificate.read_bytes()


def test_each_line_is_a_pool_and_a_time(file: Path) -> None:
    assert read_revoked(file) == {}
    file.write_text(f"a/b {PAST}\n\n  c/d 2026-01-02T03:04:05Z \na/b {FUTURE}\na/b {PAST}\n")
    assert read_revoked(file) == {
        "a/b": dt.datetime(2999, 1, 1, tzinfo=dt.UTC),
        "c/d": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    }


@pytest.mark.parametrize("line", ["a/b", f"a {PAST}", f"a/b/0 {PAST}", "a/b soon", f"a/b {PAST} more", "\x00"])
def test_another_line_is_an_error_that_names_it(file: Path, line: str) -> None:
    file.write_text(f"a/b {PAST}\n{line}\n")
    with pytest.raises(TlsFileError, match=r"revoked\.txt: line 2 is not REGION/POOL"):
        read_revoked(file)


def test_a_file_that_is_too_large_or_no_file_is_an_error(file: Path, tmp_path: Path) -> None:
    file.write_text(f"a/b {PAST}\n" * 40_000)
    read_revoked(file)
    file.write_text(f"a/b {PAST}\n" * 42_000)
    with pytest.raises(TlsFileError, match="larger than 1048576 bytes"):
        read_revoked(file)
    with pytest.raises(TlsFileError, match="not a regular file"):
        read_revoked(tmp_path)


async def passes(revocations: Revocations, certificate: bytes, learner: str = "a/b") -> bool:
    try:
        async with revocations.watched(learner, certificate):
            await asyncio.sleep(0)
    except RevokedError:
        return False
    return True


def test_a_call_passes_until_its_pool_is_revoked(file: Path, certificate: bytes) -> None:
    async def story() -> None:
        revocations = Revocations(file)
        revocations.start()
        assert await passes(revocations, certificate)
        write_atomically(file, f"a/b {PAST}\nc/d {FUTURE}\n")
        assert await passes(revocations, certificate)
        assert not await passes(revocations, certificate, "c/d")
        assert not await passes(revocations, certificate, "c/d/7")
        write_atomically(file, f"a/b {FUTURE}\n")
        assert not await passes(revocations, certificate)
        assert await passes(revocations, certificate, "c/d")
        revocations.stop()

    asyncio.run(story())


def test_calls_under_way_end_at_once_and_others_go_on(file: Path, certificate: bytes) -> None:
    async def story() -> None:
        revocations, ended = Revocations(file), []

        async def call(learner: str) -> None:
            try:
                async with revocations.watched(learner, certificate):
                    await asyncio.Event().wait()
            except RevokedError as error:
                ended.append(str(error))

        revocations.start()
        calls = [asyncio.create_task(call(learner)) for learner in ("a/b/0", "a/b/1", "c/d/0")]
        await asyncio.sleep(0)
        write_atomically(file, f"a/b {FUTURE}\n")
        revocations.look()
        await asyncio.wait(calls[:2])
        assert ended == ["the certificate of pool a/b has been revoked; a new one is needed"] * 2
        assert not calls[2].done()
        calls[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[2]
        revocations.stop()

    asyncio.run(story())


def test_a_list_that_is_gone_or_spoilt_revokes_no_less(
    file: Path, certificate: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        write_atomically(file, f"a/b {FUTURE}\n")
        revocations = Revocations(file)
        revocations.start()
        await asyncio.to_thread(file.unlink)
        assert not await passes(revocations, certificate)
        write_atomically(file, "nonsense\n")
        assert not await passes(revocations, certificate)
        assert not await passes(revocations, certificate)
        revocations.stop()

    asyncio.run(story())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("the previous list stays in use")


def test_a_spoilt_list_keeps_a_syncer_from_starting(file: Path) -> None:
    async def story() -> None:
        write_atomically(file, "nonsense\n")
        with pytest.raises(TlsFileError, match="line 1"):
            Revocations(file).start()

    asyncio.run(story())
