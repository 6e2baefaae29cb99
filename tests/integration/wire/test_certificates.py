"""Mutual TLS while certificates are renewed, and with wrong certificates. All connections are real."""

import datetime as dt
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from diloco.spec.names.syncer_name import syncer_name
from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import IdentityError, UnavailableError, WireError
from diloco.wire.messages import Alive, Join, Welcome
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.tls import ClientTls, ServerTls
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import JOIN, PAYLOAD, gets_through, pull, push
from tests.support.learner_process import LearnerProcess, make_job, tls_flags
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


class Place:
    """A folder that a process reads its certificates from, as a Secret is mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0

    def put(self, certificate: ServerTls | ClientTls, *authorities: Authority) -> None:
        """Replace the leaf and the trusted authorities: all three files at once."""
        bundle = b"".join(authority.certificate_path.read_bytes() for authority in authorities)
        leaf, key = certificate.certificate.read_bytes(), certificate.key.read_bytes()
        self.put_files({"ca.crt": bundle, "tls.crt": leaf, "tls.key": key})

    def put_files(self, contents: dict[str, bytes]) -> None:
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir(parents=True)
        for name, content in contents.items():
            (version / name).write_bytes(content)
            if self._versions == 1:
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        return self.folder / "ca.crt", self.folder / "tls.crt", self.folder / "tls.key"


class World:
    """A syncer with mutual TLS, and two authorities of which it trusts the first."""

    def __init__(self, folder: Path) -> None:
        for name in ("old", "new"):
            (folder / name).mkdir()
        # With different names, because of two trusted authorities of one name only the first is tried.
        self.old, self.new = (Authority(folder / name, f"{name} authority") for name in ("old", "new"))
        self.syncer, self.learner = Place(folder / "syncer"), Place(folder / "learner")
        self.syncer.put(self.old.server(), self.old)
        self.learner.put(self.old.learner("job", "a/b"), self.old)
        self.keeper = Keeper({7: PAYLOAD})
        self.server = RunningServer(
            self.keeper, ServerOptions("127.0.0.1:0", tls=ServerTls(*self.syncer.paths), job="job")
        )

    def client(self, address: str = "") -> BlockingClient:
        return BlockingClient(ClientOptions(address or self.server.address, tls=ClientTls(*self.learner.paths)))


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    caplog.set_level(logging.INFO)
    made = World(tmp_path)
    with made.server:
        yield made
    assert made.server.loop_complaints == []
    assert all("\n" not in record.getMessage() for record in caplog.records)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_pools_certificate_serves_every_learner_of_it(world: World) -> None:
    with world.client() as client:
        for index in range(3):
            join = Join("job", f"a/b/{index}", "instance", "layout")
            with client.open_session(join) as session:
                assert isinstance(next(iter(session)), Welcome)
            push(client, learner=f"a/b/{index}")
            assert pull(client, learner=f"a/b/{index}") == PAYLOAD


def test_another_pools_certificate_is_turned_away_with_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    told = "the certificate is that of pool a/b, the message says a/c/0"
    with world.client() as client:
        with pytest.raises(IdentityError, match=told):
            list(client.open_session(Join("job", "a/c/0", "instance", "layout")))
        assert [told in record.getMessage() for record in caplog.records if "session of" in record.getMessage()] == [
            True
        ]
        for call in (push, pull):
            with pytest.raises(IdentityError, match=told):
                call(client, learner="a/c/0")
    assert world.keeper.peers == []


def test_another_jobs_certificate_is_turned_away_with_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.learner.put(world.old.learner("other", "a/b"), world.old)
    with world.client() as client, pytest.raises(IdentityError, match="for job other; this is job job"):
        list(client.open_session(JOIN))
    (line,) = [record.getMessage() for record in caplog.records if "session of" in record.getMessage()]
    assert line.endswith("the certificate is for job other; this is job job")


def test_a_certificate_that_names_no_learner_is_turned_away(world: World) -> None:
    world.learner.put(world.old.nobody(), world.old)
    with world.client() as client, pytest.raises(IdentityError, match="names no learner"):
        push(client)


def test_a_certificate_of_another_authority_and_none_do_not_connect(world: World) -> None:
    stranger = world.new.learner("job", "a/b")
    trusting = ClientTls(world.old.certificate_path, stranger.certificate, stranger.key)
    for tls in (stranger, trusting, None):
        with BlockingClient(ClientOptions(world.server.address, tls=tls)) as client, pytest.raises(UnavailableError):
            push(client)


def test_the_syncer_uses_a_new_leaf_and_a_new_authority_without_a_restart(world: World) -> None:
    with world.client() as before, before.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        # The authority is replaced in the right order: trusted first, then used, then the old one is dropped.
        world.syncer.put(world.new.server(), world.old, world.new)
        world.learner.put(world.new.learner("job", "a/b"), world.new)
        with world.client() as after:
            push(after)
        world.syncer.put(world.new.server("again"), world.new)
        with world.client() as after:
            push(after)
        stranger = world.old.learner("job", "a/b")
        mixed = ClientTls(world.new.certificate_path, stranger.certificate, stranger.key)
        with BlockingClient(ClientOptions(world.server.address, tls=mixed)) as client, pytest.raises(UnavailableError):
            push(client)
        # Connected learners stay connected.
        session.send(Alive(1))
        assert next(said) is not None


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("tls.crt", lambda content, _: content[: len(content) // 2]),
        ("tls.key", lambda *_: b""),
        ("tls.key", lambda _, world: world.new.server("other").key.read_bytes()),
        ("ca.crt", lambda content, _: content[: len(content) - 100]),
    ],
    ids=["half a certificate", "no key yet", "key of another certificate", "half an authority"],
)
def test_a_half_written_file_is_reported_once_and_the_old_ones_stay_in_use(
    world: World, caplog: pytest.LogCaptureFixture, name: str, spoil: Callable[[bytes, World], bytes]
) -> None:
    good = world.new.server()
    whole = {
        "ca.crt": world.old.certificate_path.read_bytes() + world.new.certificate_path.read_bytes(),
        "tls.crt": good.certificate.read_bytes(),
        "tls.key": good.key.read_bytes(),
    }
    world.syncer.put_files(whole | {name: spoil(whole[name], world)})
    for _ in range(2):
        with world.client() as client:
            push(client)
    (line,) = warnings_of(caplog)
    assert line.endswith("the previous certificates stay in use")
    world.syncer.put_files(whole)
    world.learner.put(world.old.learner("job", "a/b"), world.new)
    with world.client() as client:
        push(client)


def test_a_certificate_that_has_expired_does_not_replace_one_that_is_valid(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "expired").mkdir()
    expired = Authority(tmp_path / "expired", "old authority", valid=dt.timedelta(hours=-1))
    world.syncer.put(expired.server(), world.old)
    for _ in range(2):
        with world.client() as client:
            push(client)
    (line,) = warnings_of(caplog)
    assert "the certificate is valid from " in line
    assert line.endswith(" UTC only; the previous certificates stay in use")
    # Repaired files are used.
    world.syncer.put(world.new.server(), world.old)
    world.learner.put(world.old.learner("job", "a/b"), world.new)
    with world.client() as client:
        push(client)


def test_a_reconnected_learner_uses_its_new_certificates_on_every_channel(world: World) -> None:
    with TcpProxy(world.server.address) as proxy, world.client(proxy.address) as client:
        session = client.open_session(JOIN)
        next(iter(session))
        push(client)
        # By the time the link breaks, no side trusts the old authority any more.
        world.syncer.put(world.new.server(), world.new)
        proxy.cut()
        with pytest.raises(WireError):
            list(session)
        for call in (push, pull):
            with pytest.raises(UnavailableError):
                call(client)
        world.learner.put(world.new.learner("job", "a/b"), world.new)
        for call in (push, pull, push, pull):
            gets_through(partial(call, client))
        gets_through(lambda: next(iter(client.open_session(JOIN))))


@pytest.mark.processes
def test_a_learner_process_that_is_turned_away_ends_with_one_line(world: World, tmp_path: Path) -> None:
    make_job(tmp_path, name="job")
    tls = world.old.learner("other", "here/cpu")
    named = ServerOptions("127.0.0.1:0", tls=world.old.server("named", syncer_name("job", "default")), job="job")
    with (
        RunningServer(world.keeper, named) as server,
        LearnerProcess(tmp_path, server.address, *tls_flags(tls)) as learner,
    ):
        assert learner.wait() == 3
        assert [line for line in learner.log.splitlines() if "error" in line] == learner.log.splitlines()[-1:]
        assert "the certificate is for job other; this is job job" in learner.log
