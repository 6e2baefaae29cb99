"""gRPC's health service, with its first messages read through ``Strangers`` as those of every other call."""

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from diloco.wire.errors import InvalidMessageError
from diloco.wire.server_calls import Caller
from diloco.wire.server_context import Context
from diloco.wire.strangers import Strangers
from diloco.wire.tls import Peer


class HealthCalls:
    """The calls Check and Watch."""

    def __init__(self, servicer: health.aio.HealthServicer, strangers: Strangers) -> None:
        self._servicer: Any = servicer
        self._strangers = strangers

    def handler(self, caller: Caller) -> grpc.GenericRpcHandler:
        """The handler to add to the server."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Check": grpc.stream_unary_rpc_method_handler(caller.open_to_all(self.check)),
            "Watch": grpc.stream_stream_rpc_method_handler(caller.open_to_all(self.watch)),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    async def check(self, _requests: Any, context: Context, _peer: Peer) -> bytes:
        """Answer once."""
        answer = await self._servicer.Check(await self._request(context), context)
        return bytes(answer.SerializeToString())

    async def watch(self, _requests: Any, context: Context, _peer: Peer) -> None:
        """Answer at every change."""
        await self._servicer.Watch(await self._request(context), _Serializing(context))

    async def _request(self, context: Context) -> health_pb2.HealthCheckRequest:
        first = await self._strangers.first_message(context, "request")
        try:
            return health_pb2.HealthCheckRequest.FromString(first or b"")
        except DecodeError as error:
            raise InvalidMessageError(f"not a HealthCheckRequest: {error}") from error


class _Serializing:
    """A context that serializes the messages written to it."""

    def __init__(self, context: Context) -> None:
        self._context: Any = context

    async def write(self, message: Any) -> None:
        await self._context.write(message.SerializeToString())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
