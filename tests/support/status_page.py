"""A server that answers ``/status`` like a syncer, for tests that need no syncer."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def status_page(account: dict[str, Any], host: str = "127.0.0.1", report: str = "") -> Iterator[int]:
    """Serve ``account`` on a free port of ``host``, and at ``/page`` the ``report``; yields the port."""
    pages = {"/status": json.dumps(account), "/page": report}

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, as tests read the output."""

    with http.server.ThreadingHTTPServer((host, 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
