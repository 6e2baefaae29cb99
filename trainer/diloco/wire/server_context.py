"""What gRPC gives a call on the server, by a short name."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
