"""The small HTTP server beside a process's real work: metrics, health, status.

Threads of the standard library, so that an answer comes while the event loop, a merge or an inner step is busy; that is
the point of a health check. It must not know what it serves: a route is a function without arguments.
"""

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Self

from diloco import __version__
from diloco.runtime.addresses import format_address, parse_address

_log = logging.getLogger(__name__)

_REQUEST_SECONDS = 10.0
"""A client that does not finish its request in this time is dropped: its thread is wanted back."""


class HttpServerError(RuntimeError):
    """The server cannot listen; the text names the address and why."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a route answers."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK

    @classmethod
    def text(cls, body: str, status: int = HTTPStatus.OK) -> Self:
        """Plain text."""
        return cls(body.encode(), status=status)

    @classmethod
    def json(cls, value: object, status: int = HTTPStatus.OK) -> Self:
        """A JSON document of ``value``."""
        return cls(json.dumps(value).encode() + b"\n", "application/json", status)


Route = Callable[[], Response]


class HttpServer:
    """Serves GET and HEAD of the given paths on threads of its own, from construction until ``close``."""

    def __init__(self, address: str, routes: Mapping[str, Route]) -> None:
        """Listen at ``address`` (``host:port``; port 0: the system's choice).

        Raises:
            AddressError: ``address`` cannot be read.
            HttpServerError: it cannot be listened at, for instance because another process does.
        """
        host, port = parse_address(address)
        try:
            self._server = _Server(host, port, dict(routes))
        except OSError as error:
            raise HttpServerError(f"cannot serve HTTP at {address}: {error.strerror or error}") from error
        self.address = format_address(host, int(self._server.server_address[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
        )
        self._thread.start()

    def serve(self, routes: Mapping[str, Route]) -> None:
        """Serve these paths from now on, instead of those of before."""
        self._server.routes = dict(routes)

    def close(self) -> None:
        """Stop listening; requests under way are answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, routes: dict[str, Route]) -> None:
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.routes = routes
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # the family's own tuple, host and port of it

    def server_bind(self) -> None:
        # Not HTTPServer's own, which looks the host's name up and can wait for a name server that does not answer.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the base class's
        _log.debug("HTTP request of %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS
    server_version = f"diloco/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            known = " ".join(sorted(self.server.routes))
            response = Response.text(f"not found; there are {known}\n", HTTPStatus.NOT_FOUND)
        else:
            try:
                response = route()
            except Exception:  # noqa: BLE001  # a fault in one page must be seen in the log, and cost no more than this answer
                _log.exception("HTTP route %s failed", self.path)
                response = Response.text("internal error; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's parameter
        _log.debug(format, *args)
