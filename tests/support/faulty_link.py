"""A TCP relay on loopback that does to its connections what networks do: resets, silence, delay, a low rate."""

import contextlib
import enum
import queue
import socket
import struct
import threading
import time
from typing import NamedTuple, Self

_CHUNK_BYTES = 1 << 14
_UNDER_WAY = 4096
"""Chunks that a long link holds at most, each way and connection."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without time: closing sends RST in place of FIN."""


class Way(enum.Enum):
    """A direction of the link."""

    UP = "up"
    """From the learner to the syncer."""
    DOWN = "down"


class FaultyLink:
    """Relays connections to ``target`` (``host:port``) within a ``with``; all faults end with ``heal``."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = {way: threading.Event() for way in Way}
        self._rates = {way: _Rate() for way in Way}
        self._delay_seconds = 0.0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.heal()

    def silence(self, *ways: Way) -> None:
        """Let nothing pass any more in these directions. Neither side is told: connections stay open, new ones too."""
        for way in ways:
            self._open[way].clear()

    def delay(self, seconds: float) -> None:
        """What is sent arrives so much later, each way; what follows it need not wait."""
        self._delay_seconds = seconds

    def limit(self, bytes_per_second: float) -> None:
        """All connections together carry so much, each way."""
        for rate in self._rates.values():
            rate.bytes_per_second = bytes_per_second

    def reset(self) -> None:
        """End every connection with RST, on both sides."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    # close() alone would not wake the thread that reads from it.
                    one.shutdown(socket.SHUT_RD)

    def heal(self) -> None:
        """Carry everything again. What was held back arrives now, as after retransmission."""
        self._delay_seconds = 0.0
        for way in Way:
            self._rates[way].bytes_per_second = None
            self._open[way].set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() would not
        self._listener.close()
        self._thread.join()
        self.heal()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the syncer is restarting
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            for source, sink, way in ((near, far, Way.UP), (far, near, Way.DOWN)):
                under_way: queue.Queue[_Sent] = queue.Queue(_UNDER_WAY)
                threading.Thread(target=self._receive, args=(source, under_way), daemon=True).start()
                threading.Thread(target=self._deliver, args=(under_way, source, sink, way), daemon=True).start()

    def _receive(self, source: socket.socket, under_way: "queue.Queue[_Sent]") -> None:
        data = b""
        while True:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            under_way.put(_Sent(time.monotonic() + self._delay_seconds, data))
            if not data:
                return

    def _deliver(self, under_way: "queue.Queue[_Sent]", source: socket.socket, sink: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while (sent := under_way.get()).data:
                time.sleep(max(0.0, sent.arrives_at - time.monotonic()))
                self._rates[way].take(len(sent.data))
                self._open[way].wait()
                sink.sendall(sent.data)
        for end in (source, sink):
            with self._lock:
                self._sockets.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class _Sent(NamedTuple):
    arrives_at: float
    """On the monotonic clock."""
    data: bytes
    """Empty: the end."""


class _Rate:
    """When the next bytes may pass."""

    def __init__(self) -> None:
        self.bytes_per_second: float | None = None
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until so many bytes may pass."""
        if self.bytes_per_second is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / self.bytes_per_second
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))
