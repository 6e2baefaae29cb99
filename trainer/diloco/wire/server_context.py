"""A short name for the type of gRPC's server context."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
