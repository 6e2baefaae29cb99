"""The arguments of channels. gRPC ignores those that it does not know, so their names are looked up in gRPC itself."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import grpc
import pytest

from diloco.wire.channel import CONTROL, ChannelArguments, client_arguments, server_arguments
from diloco.wire.part_messages import HEADER_BYTES
from diloco.wire.parts import LARGEST_PART_BYTES

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


def test_channels_differ_so_that_grpc_gives_each_a_connection() -> None:
    first, second = client_arguments(10.0, 1), client_arguments(10.0, 2)
    assert first != second
    assert ("grpc.use_local_subchannel_pool", 1) in first


def test_both_sides_bound_messages_just_above_the_largest_part() -> None:
    for arguments in (client_arguments(10.0, 0), server_arguments(10.0, 64, 1024)):
        limits = dict(arguments)
        for direction in ("send", "receive"):
            limit = limits[f"grpc.max_{direction}_message_length"]
            assert isinstance(limit, int)
            assert HEADER_BYTES + LARGEST_PART_BYTES < limit < 2 * LARGEST_PART_BYTES


def test_a_learner_may_ping_as_often_as_it_is_told_to() -> None:
    client, server = dict(client_arguments(2.5, 0)), dict(server_arguments(20.0, 64, 1024))
    assert client["grpc.keepalive_time_ms"] == 2500
    least = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert isinstance(least, int)
    assert least < 2500
    assert server["grpc.keepalive_permit_without_calls"] == 1
