"""Settings that both sides of a gRPC connection share: names of the calls, limits, keepalive, HTTP/2.

The settings for fragments were chosen with ``benchmarks/wire.py``, and so was one grpc.aio server for everything: a
second, threaded server for fragments was no faster, and would have needed a second address.
"""

from typing import Final

from diloco.wire.parts import LARGEST_PART_BYTES

SERVICE: Final = "diloco.wire.v1.Sync"
SESSION: Final = "Session"
PUSH_PARTS: Final = "PushParts"
PULL_PARTS: Final = "PullParts"
HEADER: Final = "header-bin"
"""Metadata of a push that is its header: so its receiver knows of it before a part has come."""

_LARGEST_GRPC_MESSAGE: Final = LARGEST_PART_BYTES + (64 << 10)
"""A little above the limit of the parts' own check, so that the peer gets that check's text."""
_FRAME_BYTES: Final = 128 << 10
"""Size of HTTP/2 DATA frames: gRPC's default of 16 KiB makes too many slices, and larger ones gain nothing."""
_WINDOW_BYTES: Final = 4 << 20
"""Bytes a stream may send ahead of its reader, held in memory by gRPC, whose own limit is 16 MiB. On a long link this
limits one transfer (40 MB/s at 100 ms), as Linux's own receive buffer does: several run at once."""

DEFAULT_CONNECTIONS: Final = 8
"""Connections that a transfer is spread over, unless the job says otherwise."""

CONTROL: Final = 0
"""Number of a learner's channel for its session, which carries no fragments."""
ONE_PART: Final = 1
"""Number of its channel for transfers of one part."""
FIRST_LANE: Final = 2
"""Number of its first channel for transfers in parts."""
POSTED_SECONDS: Final = 45.0
"""How long a posted pull waits at the syncer; then the learner waits for the notice instead. Less than the minute after
which common proxies end a silent stream. Connections stay open meanwhile: they are pinged."""

_PENDING_CALLS: Final = 256
"""Calls that the event loop has not seen yet: gRPC keeps up to a message for each, and rejects more."""
_HANDSHAKE_MILLISECONDS: Final = 10_000
_CONNECTING_MILLISECONDS: Final = 5_000
_LEAST_PING_MILLISECONDS: Final = 100
_IDLE_MILLISECONDS: Final = 300_000

ChannelArguments = list[tuple[str, int | str]]


def _both_sides(keepalive_seconds: float) -> ChannelArguments:
    milliseconds = int(keepalive_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", _LARGEST_GRPC_MESSAGE),
        ("grpc.max_send_message_length", _LARGEST_GRPC_MESSAGE),
        # Compression is off: a small message could decompress to a large one.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_frame_size", _FRAME_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ]


def server_arguments(keepalive_seconds: float, concurrent_streams: int, connections: int) -> ChannelArguments:
    """Arguments of the syncer's server; ``concurrent_streams`` is for each connection, ``connections`` for all."""
    return [
        *_both_sides(keepalive_seconds),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a shared port
        ("grpc.max_concurrent_streams", concurrent_streams),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server.max_pending_requests", _PENDING_CALLS // 2),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS),
        # A connection that does not complete the HTTP/2 or TLS handshake in this time is closed, and so is an idle one.
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
        ("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS),
        # Learners ping idle connections too. One that pings much more often, without a message between, is closed.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MILLISECONDS),
        ("grpc.http2.max_ping_strikes", 2),
    ]


def client_arguments(keepalive_seconds: float, number: int, server_name: str | None = None) -> ChannelArguments:
    """Arguments of a learner's channel ``number``; channels of different numbers have connections of their own.

    ``server_name``: the name that is sent (SNI) and that the certificate must have; None: the address's host.
    """
    milliseconds = int(keepalive_seconds * 1000)
    return [
        *([] if server_name is None else [("grpc.ssl_target_name_override", server_name)]),
        # How long a ping's answer may really take; gRPC waits a minute otherwise. On other connections a ping waits
        # behind parts of fragments, and on a thin link these take that minute.
        *([("grpc.http2.ping_timeout_ms", milliseconds)] if number == CONTROL else []),
        *_both_sides(keepalive_seconds),
        # Straight to the syncer's address: a proxy of the environment is for the web, and seldom lets these calls pass.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("diloco.channel", number),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        # Also the least time that gRPC gives an attempt: a TLS handshake is four times there and back on a far link.
        ("grpc.min_reconnect_backoff_ms", _CONNECTING_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),  # the caller retries, as only it knows whether the message is still wanted
    ]
