from diloco.wire.allocator import keep_message_buffers
from diloco.wire.channel import CHUNK_BYTES, client_arguments, server_arguments
from diloco.wire.chunks import HEADER_BYTES, LARGEST_CHUNK_BYTES


def test_channels_differ_so_that_grpc_gives_each_a_connection() -> None:
    first, second = client_arguments(10.0, 1), client_arguments(10.0, 2)
    assert first != second
    assert ("grpc.use_local_subchannel_pool", 1) in first


def test_both_sides_bound_messages_just_above_the_largest_chunk() -> None:
    for arguments in (client_arguments(10.0, 0), server_arguments(10.0, 64, 1024)):
        limits = dict(arguments)
        for direction in ("send", "receive"):
            limit = limits[f"grpc.max_{direction}_message_length"]
            assert isinstance(limit, int)
            assert HEADER_BYTES + LARGEST_CHUNK_BYTES < limit < 2 * LARGEST_CHUNK_BYTES
    assert CHUNK_BYTES <= LARGEST_CHUNK_BYTES


def test_a_learner_may_ping_as_often_as_it_is_told_to() -> None:
    client, server = dict(client_arguments(2.5, 0)), dict(server_arguments(20.0, 64, 1024))
    assert client["grpc.keepalive_time_ms"] == 2500
    least = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert isinstance(least, int)
    assert least < 2500
    assert server["grpc.keepalive_permit_without_calls"] == 1


def test_the_allocator_can_be_told_twice() -> None:
    keep_message_buffers()
    keep_message_buffers()
