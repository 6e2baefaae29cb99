"""A learner's connections to the syncer, replaced when its certificates are renewed or the syncer's address changes.

gRPC keeps a channel's certificates and address for the channel's life, however often it reconnects. So channels come in
generations: once there are new certificates, or a new session finds another address, new calls use new channels;
running calls end on the old ones, which are then closed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import grpc

from diloco.wire.client.lanes import Lanes
from diloco.wire.client.route import Route, Target
from diloco.wire.errors import UnavailableError
from diloco.wire.tls.files import FollowedFiles, TlsFiles
from diloco.wire.tls.tls import client_credentials

OpenLane = Callable[[int, Target, grpc.ChannelCredentials | None], grpc.aio.Channel]
"""Makes the channel of a number to a target, which has a connection of its own; no credentials: in plain text."""


class Connections:
    """All channels of a client. Used on one event loop; connects only when it is used."""

    def __init__(self, open_lane: OpenLane, route: Route, tls: TlsFiles | None) -> None:
        """Read the certificates; the route is first asked when a connection is needed.

        Raises:
            TlsFileError: they cannot be used.
        """
        self._open_lane = open_lane
        self._route = route
        self._files = None if tls is None else FollowedFiles(tls)
        self._newest: Lanes | None = None
        self._old: list[Lanes] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._look = True
        """Ask the route again at the next call."""

    def look_again(self) -> None:
        """Have the next call ask the route."""
        self._look = True

    def take(self) -> Lanes:
        """The connections for a new session or transfer; `give` them back when it is over.

        Raises:
            UnavailableError: it is not known yet where the syncer is.
        """
        lanes = self._current()
        lanes.users += 1
        return lanes

    def give(self, lanes: Lanes) -> None:
        """What was taken is not used any more."""
        lanes.users -= 1
        if not lanes.users and lanes in self._old:
            self._old.remove(lanes)
            task = asyncio.create_task(lanes.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[Lanes]:
        """The connections, for a transfer. If it finds nobody, the next one asks the route, as a session would."""
        lanes = self.take()
        try:
            yield lanes
        except UnavailableError:
            self.look_again()
            raise
        finally:
            self.give(lanes)

    async def close(self) -> None:
        """Break off all calls, and close every connection."""
        for lanes in (*([] if self._newest is None else [self._newest]), *self._old):
            await lanes.close()
        await asyncio.gather(*self._closing)

    def _current(self) -> Lanes:
        newest = self._newest
        renewed = None if self._files is None else self._files.renewed()
        if newest is not None and renewed is None and not self._look:
            return newest
        # Only what finds nobody looks for another address: a session that works and its transfers stay where they are.
        target = self._route.target() if newest is None or self._look else newest.target
        self._look = False
        if newest is not None and renewed is None and target == newest.target:
            return newest
        if newest is not None:
            self._old.append(newest)
            newest.users += 1
            self.give(newest)  # it is closed now if nothing uses it
        credentials = None if self._files is None else client_credentials(self._files.credentials)
        self._newest = Lanes(lambda number: self._open_lane(number, target, credentials), target)
        return self._newest
