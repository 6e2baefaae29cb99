"""gRPC ignores arguments that it does not know, so their names are looked up in gRPC itself."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import grpc
import pytest

from diloco.wire.channel import CONTROL, ChannelArguments, client_arguments, server_arguments

(CYTHON,) = [
    path for path in (Path(grpc.__file__).parent / "_cython").iterdir() if path.name.endswith(EXTENSION_SUFFIXES[0])
]
OURS = ("diloco.channel",)
"""Makes channels differ, and means nothing to gRPC."""


@pytest.mark.parametrize(
    "arguments", [client_arguments(10.0, CONTROL, "name"), client_arguments(10.0, 1), server_arguments(20.0, 32, 1024)]
)
def test_grpc_knows_every_argument(arguments: ChannelArguments) -> None:
    known = CYTHON.read_bytes()
    unknown = [name for name, _ in arguments if name not in OURS and name.encode() + b"\0" not in known]
    assert unknown == []


def test_a_name_that_grpc_does_not_know_would_be_found() -> None:
    assert b"grpc.http2.min_recv_ping_interval_without_data_ms\0" not in CYTHON.read_bytes()


def test_only_the_control_connection_gives_up_a_ping_early() -> None:
    assert dict(client_arguments(10.0, CONTROL))["grpc.http2.ping_timeout_ms"] == 10_000
    assert "grpc.http2.ping_timeout_ms" not in dict(client_arguments(10.0, 1))
