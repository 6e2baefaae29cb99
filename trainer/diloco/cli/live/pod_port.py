"""Asks the HTTP server of a pod for a page, over a connection that begins in the pod (pods/portforward).

No network policy closes that way, as it would close that of services/proxy. The client library's own port forwarding
has no limit of time, and a thread for each connection.
"""

import io
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from websocket import WebSocket

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
"""The channel of what is sent and received; what goes wrong in the pod comes in the next one."""


@dataclass(frozen=True, slots=True)
class PortAnswer:
    """An answer of the API server instead of the pod's, or the pod's."""

    refused: bool
    """The API server forwards nothing."""
    status: int
    body: bytes


def ask(
    configuration: "Configuration",
    url: str,
    headers: Mapping[str, str],
    page: str,
    timeout_seconds: float,
    limit_bytes: int,
) -> PortAnswer:
    """GET ``page`` through ``url``, a pod's portforward with one port; ``headers`` hold the credentials.

    Raises:
        OSError: no answer in time, or none that can be read.
    """
    import websocket
    from kubernetes.stream.ws_client import websocket_proxycare

    options: dict[str, Any] = {"header": [f"{name}: {value}" for name, value in headers.items()]}
    if configuration.proxy:
        options = websocket_proxycare(options, configuration, url, headers)  # type: ignore[no-untyped-call]
    until = time.monotonic() + timeout_seconds
    try:
        connection = websocket.create_connection(
            url.replace("http", "ws", 1),
            timeout=timeout_seconds,
            subprotocols=[_PROTOCOL],
            sslopt=_tls(configuration),
            suppress_origin=True,
            redirect_limit=0,
            **options,
        )
        try:
            connection.send_binary(bytes([_DATA]) + f"GET {page} HTTP/1.0\r\n\r\n".encode())
            answer = HTTPResponse(cast("Any", _Port(connection, until)))
            answer.begin()
            return PortAnswer(refused=False, status=answer.status, body=answer.read(limit_bytes))
        finally:
            connection.close(timeout=0)
    except websocket.WebSocketBadStatusException as error:
        return PortAnswer(refused=True, status=error.status_code, body=error.resp_body or b"")
    except (websocket.WebSocketException, HTTPException) as error:
        raise OSError(str(error)) from error


def _tls(configuration: "Configuration") -> dict[str, Any]:
    given = {
        "ca_certs": configuration.ssl_ca_cert,
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    verified = {} if configuration.verify_ssl else {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    return {name: value for name, value in given.items() if value} | verified


class _Port(io.RawIOBase):
    """What the pod sends from the port, as a socket whose content can be read once."""

    def __init__(self, connection: "WebSocket", until: float) -> None:
        self._connection, self._until = connection, until
        self._begun: set[int] = set()
        self._rest = b""

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (found := self._next()) is None:
                return 0
            self._rest = found
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def _next(self) -> bytes | None:
        """More of what was sent, or nothing yet; None: it has ended."""
        import websocket

        if (left_seconds := self._until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_seconds)
        try:
            _, frame = self._connection.recv_data()
        except websocket.WebSocketConnectionClosedException:
            return None
        channel, content = frame[:1], bytes(frame[1:])
        if not channel:
            return None
        if channel[0] not in self._begun:
            self._begun.add(channel[0])  # the port's number
            return b""
        if channel[0] != _DATA:
            raise OSError(content.decode("utf-8", "replace").strip())
        return content
