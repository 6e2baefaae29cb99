"""A syncer as jobs have it: with mTLS, and a certificate that has the syncer's fixed name alone."""

import os
from pathlib import Path

from diloco.spec.syncer_name import syncer_name
from diloco.wire.certificates import Authority
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.server import ServerOptions
from diloco.wire.tls import ClientTls
from tests.support.wire_syncer import Keeper, RunningServer

NAME = syncer_name("job", "team")
PAYLOAD = os.urandom(1 << 18)
"""Of fragment 7."""


class Place:
    """A job's authority, its syncer's certificate with the fixed name alone, and a learner's."""

    def __init__(self, folder: Path, job: str = "job") -> None:
        """``folder``: is made; it gets the certificates."""
        folder.mkdir()
        self.authority = Authority(folder, f"authority of {job}")
        self.name = syncer_name(job, "team")
        self.syncer = self.authority.server("syncer", self.name)
        made = self.authority.learner(job, "a/b")
        self.learner = ClientTls(made.ca, made.certificate, made.key, server_name=self.name)
        self.keeper = Keeper({7: PAYLOAD})
        self.server = RunningServer(self.keeper, ServerOptions("127.0.0.1:0", tls=self.syncer, job=job))

    def client(self, address: str | Path, keepalive_seconds: float = 10.0) -> SyncClient:
        """A learner's client."""
        return SyncClient(ClientOptions(address, tls=self.learner, keepalive_seconds=keepalive_seconds))
