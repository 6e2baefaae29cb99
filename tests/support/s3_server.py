"""A real S3 server for tests. It needs the package obstore and, in any environment, moto[server]."""

import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testbed.kind.waiting import wait_until

PROGRAM = shutil.which("moto_server")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with the bucket ``kept``; the environment has credentials for it."""
    pytest.importorskip("obstore")
    if PROGRAM is None:
        pytest.skip("no S3 server: install moto[server] in an environment of its own, with its programs on the PATH")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with subprocess.Popen([PROGRAM, "-p", str(port)], text=True, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or _listens(port), "it listens")
            urllib.request.urlopen(urllib.request.Request(f"{address}/kept", method="PUT")).close()
            yield address
        finally:
            process.kill()
