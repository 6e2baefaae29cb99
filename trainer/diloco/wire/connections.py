"""A learner's connections to the syncer, replaced when its certificates are renewed.

gRPC keeps a channel's certificates for the channel's life, however often it reconnects. So channels come in
generations: once there are new certificates, new calls use new channels; running calls end on the old ones, which are
then closed.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from diloco.wire.channel import PULL, PUSH, SERVICE
from diloco.wire.tls import client_credentials
from diloco.wire.tls_files import FollowedFiles, TlsFiles

OpenChannel = Callable[[int, grpc.ChannelCredentials | None], grpc.Channel]
"""Makes channel ``number``, which has a connection of its own; without credentials in plain text."""


class BulkChannel:
    """One connection for fragments."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.push: Any = channel.stream_unary(f"/{SERVICE}/{PUSH}")
        self.pull: Any = channel.unary_stream(f"/{SERVICE}/{PULL}")
        self.under_way = 0
        self.waiting = 0
        """Posted pulls that have not been answered yet."""


class _Generation:
    """Channels with one set of certificates."""

    def __init__(self, open_channel: OpenChannel, credentials: grpc.ChannelCredentials | None, bulk: int) -> None:
        self.control = open_channel(0, credentials)
        self.bulk = [BulkChannel(open_channel(number + 1, credentials)) for number in range(bulk)]
        self.sessions = 0

    @property
    def in_use(self) -> bool:
        return self.sessions > 0 or any(channel.under_way or channel.waiting for channel in self.bulk)

    def close(self) -> None:
        self.control.close()
        for bulk in self.bulk:
            bulk.channel.close()


class Connections:
    """All channels of a client. Used by several threads; connects only when it is used."""

    def __init__(self, open_channel: OpenChannel, tls: TlsFiles | None, bulk_channels: int) -> None:
        """Read the certificates.

        Raises:
            TlsFileError: they cannot be used.
        """
        self._open_channel = open_channel
        self._bulk_channels = bulk_channels
        self._files = None if tls is None else FollowedFiles(tls)
        self._lock = threading.Lock()
        self._turn = itertools.count()
        credentials = None if self._files is None else client_credentials(self._files.credentials)
        self._newest = _Generation(open_channel, credentials, bulk_channels)
        self._old: list[_Generation] = []

    def control(self) -> tuple[grpc.Channel, Callable[[], None]]:
        """The channel for a session, and a function to call when the session is over."""
        self._close_unused()
        with self._lock:
            generation = self._current()
            generation.sessions += 1

        def over() -> None:
            with self._lock:
                generation.sessions -= 1

        return generation.control, over

    @contextlib.contextmanager
    def bulk(self) -> Iterator[BulkChannel]:
        """The channel with the fewest transfers under way; channels with equally few take turns."""
        self._close_unused()
        with self._lock:
            chosen = self._least(lambda bulk: bulk.under_way)
            chosen.under_way += 1
        try:
            yield chosen
        finally:
            with self._lock:
                chosen.under_way -= 1

    @contextlib.contextmanager
    def posted(self) -> Iterator[tuple[BulkChannel, Callable[[], None]]]:
        """The channel with the fewest waiting pulls, and a function to call, once, when this pull's answer begins.

        Until then the pull does not count as a transfer of its channel.
        """
        self._close_unused()
        with self._lock:
            chosen = self._least(lambda bulk: bulk.waiting)
            chosen.waiting += 1
        waits = True

        def begins() -> None:
            nonlocal waits
            with self._lock:
                waits = False
                chosen.waiting -= 1
                chosen.under_way += 1

        try:
            yield chosen, begins
        finally:
            with self._lock:
                chosen.waiting -= waits
                chosen.under_way -= not waits

    def close(self) -> None:
        """Break off all calls, and close every connection."""
        with self._lock:
            self._files = None
            generations = [self._newest, *self._old]
        for generation in generations:
            generation.close()

    def _least(self, load: Callable[[BulkChannel], int]) -> BulkChannel:
        """The channel with the least load; channels with equal load take turns. Called with the lock held."""
        channels = self._current().bulk
        first = next(self._turn)
        return min((channels[(first + i) % len(channels)] for i in range(len(channels))), key=load)

    def _current(self) -> _Generation:
        """The generation for new calls. Called with the lock held."""
        renewed = None if self._files is None else self._files.renewed()
        if renewed is not None:
            self._old.append(self._newest)
            self._newest = _Generation(self._open_channel, client_credentials(renewed), self._bulk_channels)
        return self._newest

    def _close_unused(self) -> None:
        # Not done where the last call ends: that may be in one of gRPC's own threads, which a close waits for.
        with self._lock:
            unused = [generation for generation in self._old if not generation.in_use]
            self._old = [generation for generation in self._old if generation.in_use]
        for generation in unused:
            generation.close()
