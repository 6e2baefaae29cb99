"""A region's link, intact, cut and restored, with real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from diloco.local.chaos.region_link import UNSHAPED, RegionLink
from diloco.local.chaos.shaping import Pipe, Shape
from diloco.local.chaos.spec import Manner
from diloco.runtime.addresses import parse_address

TIMEOUT_SECONDS = 10.0
"""Long enough for any machine; reached only by a broken relay."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(TIMEOUT_SECONDS)
        yield server


@pytest.fixture
def link(listener: socket.socket) -> Iterator[RegionLink]:
    with closing(RegionLink(f"127.0.0.1:{listener.getsockname()[1]}")) as relay:
        yield relay


def connect(link: RegionLink, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    near = socket.create_connection(parse_address(link.address), timeout=TIMEOUT_SECONDS)
    far, _ = listener.accept()
    far.settimeout(TIMEOUT_SECONDS)
    return near, far


def test_bytes_pass_in_both_directions(link: RegionLink, listener: socket.socket) -> None:
    near, far = connect(link, listener)
    with near, far:
        near.sendall(b"up")
        assert far.recv(16) == b"up"
        far.sendall(b"down")
        assert near.recv(16) == b"down"
        near.close()
        assert far.recv(16) == b""


@pytest.mark.parametrize("shape", [UNSHAPED, Shape((Pipe(1e6, time.monotonic),))], ids=["plain", "shaped"])
def test_a_silent_cut_holds_what_is_sent_until_it_is_mended(listener: socket.socket, shape: Shape) -> None:
    with closing(RegionLink(f"127.0.0.1:{listener.getsockname()[1]}", shape, shape)) as link:
        near, far = connect(link, listener)
        with near, far:
            link.cut(Manner.SILENT)
            near.sendall(b"waiting")
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(16)
            far.settimeout(TIMEOUT_SECONDS)
            link.restore()
            assert far.recv(16) == b"waiting"


def test_a_connection_begun_during_a_silent_cut_comes_through_after_it(
    link: RegionLink, listener: socket.socket
) -> None:
    link.cut(Manner.SILENT)
    with socket.create_connection(parse_address(link.address), timeout=TIMEOUT_SECONDS) as near:
        near.sendall(b"late")
        link.restore()
        far, _ = listener.accept()
        with far:
            far.settimeout(TIMEOUT_SECONDS)
            assert far.recv(16) == b"late"


def test_a_reset_breaks_connections_and_refuses_new_ones(link: RegionLink, listener: socket.socket) -> None:
    near, far = connect(link, listener)
    with near, far:
        link.cut(Manner.RESET)
        assert ends(near)
        assert ends(far)
    with socket.create_connection(parse_address(link.address), timeout=TIMEOUT_SECONDS) as refused:
        assert ends(refused)
    link.restore()
    near, far = connect(link, listener)
    with near, far:
        near.sendall(b"again")
        assert far.recv(16) == b"again"


def test_a_connection_that_a_reset_finds_half_made_ends_too(link: RegionLink, listener: socket.socket) -> None:
    for _ in range(100):
        near, far = connect(link, listener)  # the relay may not have heard yet that this succeeded
        with near, far:
            link.cut(Manner.RESET)
            assert ends(near)
            assert ends(far)
        link.restore()


def test_a_syncer_that_is_away_ends_the_connection(listener: socket.socket, link: RegionLink) -> None:
    listener.close()
    with socket.create_connection(parse_address(link.address), timeout=TIMEOUT_SECONDS) as near:
        assert ends(near)


def ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(16) == b""
    except ConnectionError:
        return True


def test_a_shaped_link_carries_everything_in_order(listener: socket.socket) -> None:
    pipe = Pipe(1e6, time.monotonic)
    shape = Shape((pipe,), delay_seconds=0.02)
    with closing(RegionLink(f"127.0.0.1:{listener.getsockname()[1]}", shape, shape)) as relay:
        near, far = connect(relay, listener)
        with near, far:
            sent = bytes(range(256)) * 400
            near.sendall(sent)
            near.shutdown(socket.SHUT_WR)
            received = b""
            while data := far.recv(1 << 16):
                received += data
            assert received == sent


class StuckPipe(Pipe):
    """Nothing gets through."""

    def reserve(self, size_bytes: int) -> float:
        return super().reserve(size_bytes) + 3600.0


class CountedPipe(Pipe):
    """A pipe that records when the second chunk has its turn."""

    def __init__(self) -> None:
        super().__init__(1e6, time.monotonic)
        self.chunks = 0
        self.second = threading.Event()

    def reserve(self, size_bytes: int) -> float:
        self.chunks += 1
        if self.chunks == 2:
            self.second.set()
        return super().reserve(size_bytes)


def test_a_chunk_passes_the_first_pipe_while_another_is_in_the_second(listener: socket.socket) -> None:
    first = CountedPipe()
    shape = Shape((first, StuckPipe(1e6, time.monotonic)))
    with closing(RegionLink(f"127.0.0.1:{listener.getsockname()[1]}", shape, shape)) as relay:
        near, far = connect(relay, listener)
        with near, far:
            near.sendall(bytes(3 * shape.chunk_bytes))
            assert first.second.wait(TIMEOUT_SECONDS)
