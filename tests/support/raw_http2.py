"""A minimal HTTP/2 connection, for calls that no gRPC library would make: it only respects flow control."""

import contextlib
import socket
import struct
import threading
import time
from functools import partial
from types import TracebackType
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _WINDOW_UPDATE = 0, 1, 3, 4, 8
_END_HEADERS, _ACK, _END_STREAM = 4, 1, 1
_INITIAL_WINDOW_SETTING = 4
_FRAME_BYTES = 16384


class RawConnection:
    """One connection; streams are opened one after the other and never ended."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._changed = threading.Condition()
        self._window = 65_535
        self._initial = 65_535
        self._windows: dict[int, int] = {}
        self._ended: set[int] = set()
        self.closed = threading.Event()
        """The server has ended the connection."""
        self._next = 1
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, path: str) -> int:
        """Open a stream for a call; its number."""
        number, self._next = self._next, self._next + 2
        fields = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers"))
        block = b"".join(_literal(*field) for field in (*fields, ("content-type", "application/grpc")))
        with self._changed:
            self._windows[number] = 0
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, number, block))
        return number

    def send(self, stream: int, data: bytes, *, give_up_seconds: float) -> int:
        """Send as much of ``data`` as flow control allows; returns how much that is."""
        sent = 0
        until = time.monotonic() + give_up_seconds
        with contextlib.suppress(OSError):
            while sent < len(data):
                with self._changed:
                    if not self._changed.wait_for(partial(self._news, stream), until - time.monotonic()):
                        break
                    if self._over(stream):
                        break
                    size = min(self._room(stream), _FRAME_BYTES, len(data) - sent)
                    self._windows[stream] -= size
                    self._window -= size
                self._socket.sendall(_frame(_DATA, 0, stream, data[sent : sent + size]))
                sent += size
        return sent

    def begin_message(self, path: str, claimed_bytes: int, sent_bytes: int, *, give_up_seconds: float = 1.0) -> int:
        """Begin a call with a message that is never finished; returns how much of it was accepted."""
        stream = self.call(path)
        return self.send(
            stream, struct.pack(">BI", 0, claimed_bytes) + bytes(sent_bytes), give_up_seconds=give_up_seconds
        )

    def ended(self, stream: int, timeout_seconds: float) -> bool:
        """Wait until the server has ended the stream; False: it has not in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._over(stream), timeout_seconds)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _news(self, stream: int) -> bool:
        return self._room(stream) > 0 or self._over(stream)

    def _room(self, stream: int) -> int:
        return min(self._window, self._windows[stream] + self._initial)

    def _over(self, stream: int) -> bool:
        return self.closed.is_set() or stream in self._ended

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as file:
            while len(head := file.read(9)) == 9:
                size, kind = int.from_bytes(head[:3], "big"), head[3]
                flags, stream = head[4], int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
                payload = file.read(size)
                with self._changed:
                    self._take(kind, flags, stream, payload)
                    self._changed.notify_all()
        with self._changed:
            self.closed.set()
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += more
            else:
                self._windows[stream] = self._windows.get(stream, 0) + more
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SETTING:
                    self._initial = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
            self._ended.add(stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
