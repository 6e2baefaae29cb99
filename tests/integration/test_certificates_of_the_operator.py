"""The operator's certificates in the syncer's TLS: who is let in, and what a revocation changes."""

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.spec.names.syncer_name import syncer_name
from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import IdentityError, RevokedError, UnavailableError
from diloco.wire.messages import Join, Welcome
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.tls import ClientTls, ServerTls
from diloco_operator import names
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.names import PoolKey
from diloco_operator.signing import RandomCertificateMaker
from testbed.blocking_client import BlockingClient
from tests.support.wire_syncer import Keeper, RunningServer

WEST, EAST = PoolKey("us-west", "old"), PoolKey("us-east", "fast")
JOB = JobIdentity("job", "team", names.stateful_sets("job", (WEST, EAST)))
NAME = syncer_name("job", "team")
MAKER = RandomCertificateMaker()


class Mount:
    """A pod's folder with a Secret, as the kubelet keeps it."""

    def __init__(self, folder: Path, secret: str) -> None:
        self._folder, self._secret = folder / secret, secret
        self._folder.mkdir()

    def update(self, held: Mapping[str, Mapping[str, str]]) -> None:
        for name, value in held[self._secret].items():
            write_atomically(self._folder / name, base64.b64decode(value))

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self._folder / "ca.crt", self._folder / "tls.crt", self._folder / "tls.key"


def joined(client: BlockingClient, pool: PoolKey) -> bool:
    with client.open_session(Join("job", f"{pool}/0", "instance", "layout")) as session:
        return isinstance(next(iter(session)), Welcome)


def test_old_certificates_are_refused_and_new_ones_are_let_in(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    # The pool's certificate was renewed yesterday, and somebody has kept the one before.
    kept = certificates(JOB, {}, now - dt.timedelta(days=61), MAKER).secrets
    held = certificates(JOB, kept, now - dt.timedelta(days=1), MAKER).secrets
    syncer = Mount(tmp_path, names.syncer_secret("job"))
    west, east = (Mount(tmp_path, names.learner_secret(JOB.pools[pool])) for pool in (WEST, EAST))
    (tmp_path / "stolen").mkdir()
    stolen = Mount(tmp_path / "stolen", names.learner_secret(JOB.pools[WEST]))
    for mount in (syncer, west, east):
        mount.update(held)
    stolen.update(kept)

    def client(mount: Mount) -> BlockingClient:
        return BlockingClient(ClientOptions(server.address, tls=ClientTls(*mount.files, server_name=NAME)))

    server = RunningServer(Keeper(), ServerOptions("127.0.0.1:0", tls=ServerTls(*syncer.files), job="job"))
    with server, client(west) as ours, client(stolen) as theirs, client(east) as others:
        assert [joined(one, pool) for one, pool in ((ours, WEST), (theirs, WEST), (others, EAST))] == [True] * 3
        fresh = certificates(replace(JOB, not_before={WEST: now}), held, now + dt.timedelta(seconds=2), MAKER).secrets
        syncer.update(fresh)
        for one in (ours, theirs):
            with pytest.raises(RevokedError, match="the certificate of pool us-west/old has been revoked"):
                joined(one, WEST)
        assert joined(others, EAST)
        with pytest.raises(IdentityError):
            joined(others, WEST)
        west.update(fresh)
        assert joined(ours, WEST)
        with pytest.raises(RevokedError):
            joined(theirs, WEST)


def test_a_certificate_opens_only_what_it_is_for(tmp_path: Path) -> None:
    """By gRPC's own TLS, which is not Python's."""
    now = dt.datetime.now(dt.UTC)
    syncer, learner = names.syncer_secret("job"), names.learner_secret(JOB.pools[WEST])
    expired = certificates(JOB, {}, now - dt.timedelta(days=91), MAKER).secrets
    ours, other = (certificates(JOB, held, now, MAKER).secrets for held in (expired, {}))

    def files(leaf: Mapping[str, str]) -> tuple[Path, Path, Path]:
        """Of somebody who trusts our authority, and shows this certificate."""
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        mount = Mount(folder, "tls")
        mount.update({"tls": {**leaf, "ca.crt": ours[learner]["ca.crt"]}})
        return mount.files

    def meets(server: Mapping[str, str], client: Mapping[str, str] | None, name: str = NAME) -> bool:
        tls = None if client is None else ClientTls(*files(client), server_name=name)
        options = ServerOptions("127.0.0.1:0", tls=ServerTls(*files(server)), job="job")
        with (
            RunningServer(Keeper(), options) as running,
            BlockingClient(ClientOptions(running.address, tls=tls)) as one,
        ):
            return joined(one, WEST)

    assert meets(ours[syncer], ours[learner])
    for stranger in (other[learner], expired[learner], ours[syncer], None):
        with pytest.raises(UnavailableError):
            meets(ours[syncer], stranger)
    for posing in (other[syncer], expired[syncer], ours[learner]):
        with pytest.raises(UnavailableError):
            meets(posing, ours[learner])
    with pytest.raises(UnavailableError):
        meets(ours[syncer], ours[learner], syncer_name("other", "team"))
