"""A learner of several nodes: what a node does before all are there, and what any but the first does then."""

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import NamedTuple

from diloco.learner.options import LearnerOptions
from diloco.learner.unit.nodes.first_node import FirstNode
from diloco.learner.unit.nodes.node_connection import NodePlace
from diloco.learner.unit.nodes.node_link import Meeting, NodeLink, OtherNode
from diloco.runtime.addresses import parse_address
from diloco.runtime.http import HttpServer, Response, Route
from diloco.runtime.process.exits import STOP_SIGNALS

_log = logging.getLogger(__name__)


class Nodes(NamedTuple):
    """The nodes of a learner, as one of them sees it."""

    link: NodeLink
    meeting: Meeting
    http: HttpServer | None
    """This node's, which has the pages of one that waits."""


@contextmanager
def joined_nodes(options: LearnerOptions) -> Iterator[Nodes]:
    """Inside, all nodes are there.

    Raises:
        NodeLinkError: the first node cannot listen.
        NodeRefusedError: the first node refuses this one.
        HttpServerError: the pages cannot be served.
    """
    assert options.unit is not None, "it is one node"
    host, port = parse_address(options.unit)
    name = options.job.metadata.name
    place = NodePlace(name, options.learner, options.node, options.nodes, host, port, options.pod, options.tls)
    with _http(options.http_address) as http, closing(OtherNode(place) if options.node else FirstNode(place)) as link:
        _log.info("node %d of %s waits for the other nodes of %d", options.node, options.learner, options.nodes)
        meeting = link.meet()
        _log.info("all %d nodes of %s are there", options.nodes, options.learner)
        yield Nodes(link, meeting, http)


@contextmanager
def _http(address: str | None) -> Iterator[HttpServer | None]:
    if address is None:
        yield None
        return
    pages = node_pages("waiting for the other nodes of this learner", HTTPStatus.SERVICE_UNAVAILABLE)
    with HttpServer(address, pages) as http:
        _log.info("serving /metrics, /healthz and /readyz at http://%s", http.address)
        yield http


def node_pages(state: str, ready: HTTPStatus = HTTPStatus.OK) -> dict[str, Route]:
    """The pages of a node that waits for others or follows the first, which has the learner's figures."""
    return {
        "/metrics": lambda: Response.text(""),
        "/healthz": lambda: Response.text("ok\n"),
        "/readyz": lambda: Response.text(f"{state}\n", ready),
    }


@contextmanager
def asked_to_stop(tell: Callable[[str], object]) -> Iterator[None]:
    """Inside, call ``tell`` on another thread when a signal asks for the end: this one may wait in a collective."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)  # noqa: FBT003  # its only parameter

    def hear() -> None:
        while numbers := reading.recv(1):
            if numbers[0] in before:
                tell(signal.Signals(numbers[0]).name)

    before = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    signal.set_wakeup_fd(writing.fileno())
    thread = threading.Thread(target=hear, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        writing.close()
        thread.join()
        reading.close()
