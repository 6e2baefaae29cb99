"""A syncer as jobs have it: with mTLS, and a certificate that has the syncer's fixed name alone."""

import os
from dataclasses import replace
from pathlib import Path

from diloco.spec.names.syncer_name import syncer_name
from diloco.wire.client.client import ClientOptions
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.tls import ClientTls, ServerTls
from testbed.blocking_client import BlockingClient
from tests.support.wire_syncer import Keeper, RunningServer

NAME = syncer_name("job", "team")
PAYLOAD = os.urandom(1 << 18)
"""Of fragment 7."""


class Place:
    """A job's authority, its syncer's certificate with the fixed name alone, and a learner's."""

    def __init__(self, folder: Path, job: str = "job", namespace: str = "team", pool: str = "a/b") -> None:
        """``folder``: is made; it gets the certificates."""
        folder.mkdir()
        self.job, self.name = job, syncer_name(job, namespace)
        self.authority = Authority(folder, f"authority of {job} in {folder.name}")
        self.syncer = self.authority.server("syncer", self.name)
        self.learner = self.tls(self.authority.learner(job, pool))
        self.keeper = Keeper({7: PAYLOAD})
        self.server = self.serving(self.syncer)

    def tls(self, made: ClientTls) -> ClientTls:
        """This certificate, for somebody who trusts this authority and looks for this syncer."""
        return replace(made, ca=self.authority.certificate_path, server_name=self.name)

    def serving(self, tls: ServerTls) -> RunningServer:
        """A server of the job with this certificate."""
        return RunningServer(self.keeper, ServerOptions("127.0.0.1:0", tls=tls, job=self.job))

    def client(
        self, address: str | Path = "", tls: ClientTls | None = None, keepalive_seconds: float = 10.0
    ) -> BlockingClient:
        """A learner's client, to its server unless there is another address."""
        options = ClientOptions(address or self.server.address, tls=tls or self.learner)
        return BlockingClient(replace(options, keepalive_seconds=keepalive_seconds))
