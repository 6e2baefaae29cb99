"""A server that answers ``/status`` as a syncer does, where no syncer is needed."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def status_page(account: dict[str, Any], host: str = "127.0.0.1") -> Iterator[int]:
    """Serves ``account`` on a port of ``host`` that is free, and gives the port."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(account).encode()
            self.send_response(200 if self.path == "/status" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: tests read the output."""

    with http.server.ThreadingHTTPServer((host, 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
