"""A TCP relay on loopback that does to its connections what networks do: resets, silence, delay, a low rate."""

import contextlib
import enum
import queue
import socket
import struct
import threading
import time
from typing import NamedTuple

from tests.support.relays import Relay

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


class FaultyLink(Relay):
    """Relays connections to ``target`` (``host:port``) within a ``with``; all faults end with ``heal``."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._open = {way: threading.Event() for way in Way}
        self._rates = {way: _Rate() for way in Way}
        self._delay_seconds = 0.0
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

    def __exit__(self, *_: object) -> None:
        self.heal()
        super().__exit__()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        threads = []
        for source, sink, way in ((near, far, Way.UP), (far, near, Way.DOWN)):
            under_way: queue.Queue[_Sent] = queue.Queue(_UNDER_WAY)
            threading.Thread(target=self._receive, args=(source, under_way), daemon=True).start()
            threads.append(threading.Thread(target=self._deliver, args=(under_way, source, sink, way), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

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
