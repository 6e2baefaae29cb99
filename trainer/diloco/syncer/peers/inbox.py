"""Incoming outer gradients: requested, being received, complete.

Memory is bounded by what was requested: before a buffer is allocated, a push must name an open request exactly and have
the length that the codec gives that fragment.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from diloco.core.buffers import recycled
from diloco.core.fragments import Layout
from diloco.core.merge.codec import Codec
from diloco.wire.messages import PushHeader, PushKey


@dataclass(frozen=True, slots=True)
class _Reception:
    """A push under way."""

    buffer: torch.Tensor
    abandon: Callable[[], None]


class PushRefusedError(RuntimeError):
    """A push that was not requested, or does not match its request; the text says why."""


class Inbox:
    """All outer gradients that are requested or held. Owned by the event loop.

    A key has one buffer at most: a second push for one request is refused while the first is under way.
    """

    def __init__(self, layout: Layout, codec: Codec) -> None:
        self._layout = layout
        self._codec = codec
        self._asks: dict[PushKey, _Reception | None] = {}
        """Open requests, each with the push under way."""
        self._leaving: dict[PushKey, torch.Tensor] = {}
        """Buffers of pushes that are no longer wanted but still being received."""
        self._arrived: dict[PushKey, torch.Tensor] = {}
        self._lapsed: dict[tuple[str, int], PushKey] = {}
        """By learner and fragment: the latest request whose round was over before its push came."""

    @property
    def held_bytes(self) -> int:
        """Memory of payloads that are complete or being received."""
        receiving = [reception.buffer for reception in self._asks.values() if reception is not None]
        return sum(buffer.nbytes for buffer in (*receiving, *self._leaving.values(), *self._arrived.values()))

    def ask(self, key: PushKey) -> None:
        """Expect this push; an older request for the same fragment from the same learner becomes void."""
        for old in [k for k in self._asks if (k.learner, k.fragment) == (key.learner, key.fragment) and k != key]:
            self._void(old)
        self._asks.setdefault(key, None)

    def void_session(self, learner: str, incarnation: int) -> None:
        """Expect nothing more from a session that is over. Complete payloads stay, as they may still be merged."""
        for key in [k for k in self._asks if (k.learner, k.incarnation) == (learner, incarnation)]:
            self._void(key)
        for place in [place for place in self._lapsed if place[0] == learner]:
            del self._lapsed[place]

    def void_version(self, fragment: int, version: int) -> None:
        """Note that a version is made: expect no more pushes for it, and drop its payloads."""
        for key in [k for k in self._asks if k.fragment == fragment and k.version <= version]:
            self._void(key)
            self._lapsed[key.learner, key.fragment] = key
        for key in [k for k in self._arrived if k.fragment == fragment and k.version <= version]:
            del self._arrived[key]

    def lapsed(self, key: PushKey) -> bool:
        """Whether a push comes after its round; true once per request."""
        if self._lapsed.get((key.learner, key.fragment)) != key:
            return False
        del self._lapsed[key.learner, key.fragment]
        return True

    def open(self, header: PushHeader, abandon: Callable[[], None]) -> torch.Tensor:
        """A buffer for a push, uint8, shape (payload_bytes,); ``abandon`` is called once the push is no longer wanted.

        The code that fills the buffer must then call ``abandon`` of this inbox, so that its memory is counted until it
        is free.

        Raises:
            PushRefusedError: before any memory is allocated.
        """
        problem = self._problem(header)
        if problem is not None:
            raise PushRefusedError(problem)
        buffer = recycled(header.payload_bytes, torch.uint8)
        self._asks[header.key] = _Reception(buffer, abandon)
        return buffer

    def received(self, key: PushKey) -> torch.Tensor | None:
        """The buffer of a push that was received in full; None if it is no longer wanted."""
        reception = self._asks.get(key)
        return None if reception is None else reception.buffer

    def accept(self, key: PushKey) -> bool:
        """Keep a checked payload until it is taken or dropped; False if it is no longer wanted."""
        reception = self._asks.pop(key, None)
        if reception is None:
            self._leaving.pop(key, None)
            return False
        self._arrived[key] = reception.buffer
        return True

    def abandon(self, key: PushKey) -> None:
        """Note that a push has failed or its content is invalid: its request, if there still is one, stays open."""
        self._leaving.pop(key, None)
        if key in self._asks:
            self._asks[key] = None

    def payload(self, key: PushKey) -> torch.Tensor:
        """A complete payload, uint8, shape (payload_bytes,).

        Raises:
            KeyError: it is not here.
        """
        return self._arrived[key]

    def drop(self, key: PushKey) -> None:
        """Free a payload."""
        self._arrived.pop(key, None)

    def _void(self, key: PushKey) -> None:
        reception = self._asks.pop(key)
        if reception is not None:
            self._leaving[key] = reception.buffer
            reception.abandon()

    def _problem(self, header: PushHeader) -> str | None:
        key = header.key
        where = f"fragment {key.fragment} for version {key.version}, attempt {key.attempt},"
        if key not in self._asks:
            here = key in self._arrived
            return f"{where} {'was received before' if here else 'was not requested, or no longer is'}"
        if self._asks[key] is not None:
            return f"another push of {where} is under way"
        if header.codec != self._codec.name:
            return f"codec is {header.codec!r}; sync.compression of this job is {self._codec.name}"
        expected = self._codec.payload_bytes(self._layout.fragments[key.fragment].numel)
        if header.payload_bytes != expected:
            return f"{where} is {expected} bytes in codec {self._codec.name}, not {header.payload_bytes}"
        if header.base_version >= key.version:
            return f"{where} cannot be measured from version {header.base_version}"
        return None
