"""A revocation from the annotation to the learner: old certificates are refused, new ones let the same client in."""

import base64
import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.spec.syncer_name import syncer_name
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import RevokedError
from diloco.wire.messages import Join, Welcome
from diloco.wire.server import ServerOptions
from diloco.wire.tls import ClientTls, ServerTls
from diloco_operator import names
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.revocation import revoked, with_entry
from diloco_operator.names import PoolKey
from diloco_operator.signing import RandomCertificateMaker
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


def joined(client: SyncClient, pool: PoolKey) -> bool:
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

    def client(mount: Mount) -> SyncClient:
        return SyncClient(ClientOptions(server.address, tls=ClientTls(*mount.files, server_name=NAME)))

    server = RunningServer(Keeper(), ServerOptions("127.0.0.1:0", tls=ServerTls(*syncer.files), job="job"))
    with server, client(west) as ours, client(stolen) as theirs, client(east) as others:
        assert [joined(one, pool) for one, pool in ((ours, WEST), (theirs, WEST), (others, EAST))] == [True] * 3
        said = revoked(with_entry("", WEST.region, now), JOB.pools, now)
        fresh = certificates(replace(JOB, revoked=said), held, now + dt.timedelta(seconds=2), MAKER).secrets
        syncer.update(fresh)
        for one in (ours, theirs):
            with pytest.raises(RevokedError, match="the certificate of pool us-west/old has been revoked"):
                joined(one, WEST)
        assert joined(others, EAST)
        west.update(fresh)
        assert joined(ours, WEST)
        with pytest.raises(RevokedError):
            joined(theirs, WEST)
