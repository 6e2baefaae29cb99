"""A small HTTP server for metrics, health and status.

It uses threads of the standard library, so that a health check is answered while the event loop, a merge or an inner
step is busy. A route is a function without arguments.

A server on loopback answers only requests for an IP address, ``localhost`` or the name it was started with. A page of
another site, whose name was made to lead here (DNS rebinding), makes the browser ask for that name. A server that other
machines can reach cannot check this: which names of Services, proxies and ingresses lead to it is not known here.
"""

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self

from diloco import __version__
from diloco.runtime.addresses import format_address, is_loopback, listening_host, named_in, parse_address

_log = logging.getLogger(__name__)

_REQUEST_SECONDS = 10.0
"""A client that has not sent its request and read the answer in this time is disconnected, to free its thread."""
_MOST_CONNECTIONS = 64
"""Most connections at once. A new one beyond that replaces the oldest, so that a health check is always answered."""

_KEPT_SECONDS = 1.0
_KEPT_TIMES = 20
"""A kept page is made again once it is this many times as old as making it took CPU time: a twentieth of a core."""


class HttpServerError(RuntimeError):
    """The server cannot listen; the text names the address and says why."""


@dataclass(frozen=True, slots=True)
class Response:
    """A route's answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, body: str, status: int = HTTPStatus.OK) -> Self:
        """A plain text response."""
        return cls(body.encode(), status=status)

    @classmethod
    def json(cls, value: object, status: int = HTTPStatus.OK) -> Self:
        """A response with ``value`` as JSON."""
        return cls(json.dumps(value).encode() + b"\n", "application/json", status)


Route = Callable[[], Response]

_FAULT = Response.text("internal error; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)


class KeptPage:
    """A route whose answer takes long to make: it is kept for a while, however many ask, and so is a failure."""

    def __init__(
        self,
        make: Route,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """``clock`` returns seconds and never goes back; ``spent`` the calling thread's CPU time in seconds.

        CPU time, so that a machine that is busy, or a slow answer that ``make`` waits for, does not keep the page.
        """
        self._make, self._clock, self._spent = make, clock, spent
        self._lock = threading.Lock()
        self._until, self._kept = -math.inf, Response(b"")

    def __call__(self) -> Response:
        """The answer; others that ask while it is made wait for it."""
        with self._lock:
            if self._clock() >= self._until:
                began = self._spent()
                try:
                    self._kept = self._make()
                except Exception:  # noqa: BLE001  # logged, and answered like any page that fails
                    _log.exception("a page cannot be made")
                    self._kept = _FAULT
                self._until = self._clock() + max(_KEPT_SECONDS, _KEPT_TIMES * (self._spent() - began))
            return self._kept


class HttpServer:
    """Serves GET and HEAD of the given paths on threads of its own, from construction until ``close``."""

    def __init__(self, address: str, routes: Mapping[str, Route], *, request_seconds: float = _REQUEST_SECONDS) -> None:
        """Listen at ``address`` (``host:port``; port 0: the system's choice); each request has ``request_seconds``.

        Raises:
            AddressError: ``address`` cannot be parsed.
            HttpServerError: the server cannot listen there, for instance because another process does.
        """
        host, port = parse_address(address)
        host = listening_host(host)
        try:
            self._server = _Server(host, port, dict(routes), request_seconds)
        except OSError as error:
            raise HttpServerError(f"cannot serve HTTP at {address}: {error.strerror or error}") from error
        self.address = format_address(host, int(self._server.server_address[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
        )
        self._thread.start()

    def serve(self, routes: Mapping[str, Route]) -> None:
        """Serve these paths from now on, instead of the previous ones."""
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
    request_queue_size = 128

    def __init__(self, host: str, port: int, routes: dict[str, Route], request_seconds: float) -> None:
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        """Connections, oldest first."""
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.routes = routes
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # the family's own tuple, host and port of it
        bound = str(self.server_address[0])
        self.names = {"", "localhost", host.lower()} if is_loopback(bound) else None
        """In ``Host`` headers, those that are answered; empty: an IP address. None: all."""

    def server_bind(self) -> None:
        # HTTPServer's own method would look up the host's name and may wait for a name server that does not answer.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            while len(self._deadlines) >= _MOST_CONNECTIONS:
                oldest = next(iter(self._deadlines))
                del self._deadlines[oldest]
                _break(oldest)
            self._deadlines[request] = time.monotonic() + self._request_seconds
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def next_request(self, request: socket.socket) -> None:
        """Restart the time limit for the next request on this connection, as an answer was sent."""
        with self._lock:
            if request in self._deadlines:
                self._deadlines[request] = time.monotonic() + self._request_seconds

    def service_actions(self) -> None:
        # Called several times per second. The socket's own timeout would restart with every byte.
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, until in self._deadlines.items() if now >= until]:
                del self._deadlines[connection]
                _break(connection)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the base class's
        _log.debug("HTTP request from %s was aborted", client_address, exc_info=True)


def _break(connection: socket.socket) -> None:
    """Shut it down, so that the thread that reads or writes it gets an end of file."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


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
        names = self.server.names
        others = (
            [] if names is None else [one for one in self.headers.get_all("Host", []) if named_in(one) not in names]
        )
        if others:
            told = f"Host: {others[0]!r} is not a name of this server; use localhost or 127.0.0.1\n"
            response = Response.text(told, HTTPStatus.MISDIRECTED_REQUEST)
        elif route is None:
            known = " ".join(sorted(self.server.routes))
            response = Response.text(f"not found; there are {known}\n", HTTPStatus.NOT_FOUND)
        else:
            try:
                response = route()
            except Exception:  # noqa: BLE001  # an error in one page is logged, and fails only this request
                _log.exception("HTTP route %s failed", self.path)
                response = _FAULT
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in response.headers:
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(response.body)
        self.server.next_request(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's parameter
        _log.debug(format, *args)
