"""Each thing that can stand between a learner and the syncer has its own line. Every one is caused for real."""

import datetime as dt
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diloco.wire.client.diagnosis import diagnose
from diloco.wire.errors import UnavailableError
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.tls import ClientTls
from tests.integration.wire.calls import JOIN
from tests.support.relays import Relay, SniProxy
from tests.support.wire_place import NAME, Place
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.fixture
def job(tmp_path: Path) -> Place:
    return Place(tmp_path / "job")


def told(address: str, tls: ClientTls | None) -> str:
    line = diagnose(address, tls)
    assert line is not None
    assert "\n" not in line
    return line


class Listening(Relay):
    """A server that does this with each connection."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        super().__init__()
        self._answer = answer

    def _target(self, near: socket.socket) -> None:
        self._answer(near)


def test_nothing_is_found_where_nothing_is_wrong(job: Place) -> None:
    with job.server as server:
        assert diagnose(server.address, job.learner) is None
        with SniProxy({NAME: server.address}) as proxy:
            assert diagnose(proxy.address, job.learner) is None


def test_a_name_that_does_not_resolve(job: Place) -> None:
    line = told("no-such-host.invalid:443", job.learner)
    assert line.startswith("no-such-host.invalid:443: the name no-such-host.invalid does not resolve (")
    assert "does not resolve" in told(f"{'a' * 64}.invalid:443", None)


def test_a_port_where_nothing_listens(job: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert told(address, job.learner) == f"{address}: nothing listens there (connection refused)"
    assert told(address, None) == f"{address}: nothing listens there (connection refused)"


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", bytes(64)], ids=["http", "ssh", "zeros"]
)
def test_something_that_speaks_no_tls(job: Place, says: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(says)

    with Listening(answer) as other:
        assert told(other.address, job.learner) == f"{other.address}: what listens there speaks no TLS"


def test_a_syncer_without_certificates_speaks_no_tls(job: Place) -> None:
    with RunningServer(Keeper(), ServerOptions("127.0.0.1:0")) as server:
        assert told(server.address, job.learner) == f"{server.address}: what listens there speaks no TLS"


def test_something_that_never_answers(job: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.wire.client.diagnosis.STEP_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "accepts the connection, but does not answer a TLS handshake within 0.2 s" in told(address, job.learner)


def test_the_address_of_another_job(job: Place, tmp_path: Path) -> None:
    with Place(tmp_path / "other", "other").server as other:
        expected = (
            "leads to the syncer of job other in namespace team; this learner belongs to job job in namespace team"
        )
        assert told(other.address, job.learner) == f"{other.address}: {expected}"


def test_a_syncer_of_the_same_name_with_another_authority(job: Place, tmp_path: Path) -> None:
    with Place(tmp_path / "again").server as again:
        assert "a syncer of job job in namespace team with another authority" in told(again.address, job.learner)


def test_a_proxy_that_ends_tls(job: Place, tmp_path: Path) -> None:
    (tmp_path / "proxy").mkdir()
    shown = Authority(tmp_path / "proxy", "proxy's authority").server("proxy", "gateway.example.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)

    def end_tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    with Listening(end_tls) as proxy:
        line = told(proxy.address, job.learner)
    assert line.startswith(
        f"{proxy.address}: shows the certificate of gateway.example.com, which this job's authority has not"
    )
    assert "something on the way ends TLS" in line


def test_a_proxy_without_a_route_for_the_name(job: Place) -> None:
    with SniProxy({}) as proxy:
        line = told(proxy.address, job.learner)
    assert line.endswith(
        f"closes the connection in the TLS handshake; a proxy there may have no route for the name {NAME}"
    )


def test_a_learners_certificate_that_has_expired(job: Place, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Authority(tmp_path / "old", "old", valid=dt.timedelta(hours=-1)).learner("job", "a/b")
    with job.server as server:
        line = told(server.address, job.tls(old))
    assert line.startswith("this learner's own certificate cannot be used: ")
    assert "the certificate is valid from " in line


def test_a_learners_certificate_of_another_job(job: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other", "other")
    with job.server as server:
        line = told(server.address, job.tls(other.learner))
    assert line.startswith(f"{server.address}: the syncer does not accept this learner's certificate (it ends the conn")
    assert "it is of another job" in line


def test_a_syncers_certificate_that_has_expired(job: Place, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = Authority(tmp_path / "old", "old", valid=dt.timedelta(hours=-1))
    with job.serving(old.server("syncer", NAME)) as server:
        tls = replace(job.learner, ca=_bundle(tmp_path, old.certificate_path, job.authority.certificate_path))
        assert told(server.address, tls) == f"{server.address}: the syncer's certificate has expired"


def test_no_certificate_at_all_is_a_line_and_no_traceback(job: Place, tmp_path: Path) -> None:
    with job.server as server:
        line = told(server.address, replace(job.learner, key=tmp_path / "missing.key"))
    assert line.startswith("this learner's certificate cannot be used: private key ")


def test_a_syncers_certificate_without_the_fixed_name(job: Place) -> None:
    with job.serving(job.authority.server("own")) as server, job.client(server.address) as client:
        with client.open_session(JOIN) as session, pytest.raises(UnavailableError):
            list(session)
        assert client.why_unreachable() == (
            f"{server.address}: the syncer's certificate is for localhost, 127.0.0.1, ::1; use one for {NAME}"
        )


def _bundle(folder: Path, *authorities: Path) -> Path:
    found = folder / "bundle.pem"
    found.write_bytes(b"".join(path.read_bytes() for path in authorities))
    return found
