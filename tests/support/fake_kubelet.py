"""A node's kubelet, of which an API server needs no more here than to forward a port of the pods on it."""

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Self

from aiohttp import WSMsgType, web

from diloco_operator.api_server.kinds import Kind
from testbed.api_server.certificates import Authority
from testbed.api_server.server import ApiServer

_NODE = Kind("Node", "nodes", "", "v1")
_DATA, _ERROR = b"\0", b"\1"


class Kubelet:
    """Forwards every port of every pod to one port of this machine."""

    def __init__(self, target: int, authority: Authority) -> None:
        self.asked: list[int] = []
        """The ports that were to be forwarded."""
        self.refuses = False
        """Nothing listens in the pods."""
        self.port = 0
        self._target = target
        leaf = authority.leaf("kubelet", hosts=["127.0.0.1"])
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(leaf.certificate, leaf.key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def join(self, server: ApiServer, node: str) -> None:
        """Be the kubelet of this node of the server's."""
        server.put(_NODE.path(None), {"metadata": {"name": node}})
        ports = {"kubeletEndpoint": {"Port": self.port}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        server.set_status(_NODE.path(None, node), {"addresses": addresses, "daemonEndpoints": ports})

    def __enter__(self) -> Self:
        self._thread.start()
        app = web.Application()
        app.add_routes([web.get("/portForward/{namespace}/{pod}", self._forward)])
        self._runner = web.AppRunner(app)
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        port = int(request.query["port"])
        self.asked.append(port)
        client = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await client.prepare(request)
        for channel in (_DATA, _ERROR):
            await client.send_bytes(channel + port.to_bytes(2, "little"))
        if self.refuses:
            await client.send_bytes(_ERROR + b"failed to forward: connection refused")
            return client
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        message = await client.receive()
        assert message.type is WSMsgType.BINARY
        assert message.data[:1] == _DATA
        writer.write(message.data[1:])
        while content := await reader.read(1 << 16):
            await client.send_bytes(_DATA + content)
        writer.close()
        return client
