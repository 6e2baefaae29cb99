"""A learner's session with the syncer in virtual time: joins, keeps the lease, and reconnects after a break."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from diloco.core.engine.actions import Admit, Fence, Finish, Refusal, Refuse
from diloco.core.engine.events import Event, FragmentArrived, FragmentLate, LearnerAlive, LearnerJoined
from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.link import Connection
from diloco.simulate.network.shared_line import SharedLine
from diloco.simulate.scenario import Profile
from diloco.simulate.syncer import Order, PostedPull, Pulled, SimulatedSyncer, Tell
from diloco.simulate.training.work import Payload
from diloco.spec import JobSpec
from diloco.spec.names.learner_ids import region_of


@dataclass
class Traffic:
    """Bytes of the fragments that were sent between the learners of each region and the syncer."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """What a learner's process depends on."""

    job: JobSpec
    clock: VirtualClock
    syncer: SimulatedSyncer
    reconnect_seconds: float
    seed: int
    lines: Mapping[str, tuple[SharedLine, SharedLine]] = field(default_factory=dict)
    """Up and down, by name."""
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True)
class Identity:
    """Which learner, and which of its processes."""

    learner: str
    instance: str
    profile: Profile
    restart: Callable[[], None] = lambda: None
    """Called when the syncer has ended the process so that another takes its place."""


@dataclass(frozen=True)
class SessionCallbacks:
    """Functions that the session calls."""

    make_join: Callable[[], LearnerJoined]
    handle_order: Callable[[Order, float], None]
    """Receives an order, with the job's progress, 0 to 1."""
    over: Callable[[], None]
    """Called when the connection is lost: nothing that it carried will arrive."""
    received: Callable[[int, Pulled], None]
    """Receives a fragment, of this number."""


class SimulatedSession:
    """Keeps a process connected from its start to its end."""

    def __init__(self, environment: Environment, identity: Identity, callbacks: SessionCallbacks) -> None:
        self._environment = environment
        self._identity = identity
        self._callbacks = callbacks
        self._link: tuple[Connection, Tell] | None = None
        self._reachable = True
        self.alive = True
        self.admitted = False
        """The syncer has accepted the current connection."""
        self.incarnation = 0
        self._pushed: dict[int, FragmentArrived] = {}
        """Fragment -> its latest outer gradient that was to be sent."""
        self._delays = random.Random(f"{environment.seed}/{identity.instance}/delays")  # noqa: S311 - no secret

    def open(self) -> None:
        """Connect and join; an existing connection is closed."""
        if not (self.alive and self._reachable):
            return
        self._disconnect()
        environment, profile = self._environment, self._identity.profile
        lines = [environment.lines[name] for name in profile.lines]
        connection = Connection(environment.clock, profile.link, lines, self._delays)

        def tell(order: Order, progress: float) -> None:
            connection.send_back(partial(self._handle_order, order, progress))

        self._link = (connection, tell)
        join = self._callbacks.make_join()
        connection.send(lambda: environment.syncer.join(join, tell))

    def end(self) -> None:
        """End the process's session without notice."""
        self.alive = False
        self._disconnect()

    def leave(self) -> None:
        """End the process's session and tell the syncer so."""
        self.alive = False
        self._disconnect(clean=True)

    def cut(self, seconds: float) -> None:
        """Let nothing through for this time; then reconnect."""
        self._reachable = False
        self._disconnect()

        def restore() -> None:
            self._reachable = True
            self.open()

        self._environment.clock.after(seconds + self._environment.reconnect_seconds, restore)

    def send(self, event: Event) -> None:
        """Send an event to the syncer."""
        if self._link is not None:
            self._link[0].send(partial(self._environment.syncer.feed, event))

    def push(self, event: FragmentArrived, payload: Payload) -> None:
        """Push an outer gradient."""
        if self._link is not None:
            self._pushed[event.fragment] = event
            self._link[0].up.transfer(event.fragment, partial(self._begin_push, event, payload))

    def _begin_push(self, event: FragmentArrived, payload: Payload) -> tuple[int, Callable[[], None]]:
        self._count(self._environment.traffic.up, payload.size_bytes)
        return payload.size_bytes, partial(self._environment.syncer.push, event, payload)

    def round_over(self, fragment: int) -> None:
        """Withdraw an outer gradient of this fragment that has not been sent in full, as it would be too late.

        The real syncer refuses what is left of it, and tells the engine so a round trip earlier than here.
        """
        unsent = None if self._link is None else self._link[0].up.withdraw(fragment)
        if unsent is None:
            return
        self._count(self._environment.traffic.up, -round(unsent))
        late = self._pushed[fragment]
        self.send(FragmentLate(late.learner, late.incarnation, late.fragment, late.version, late.attempt))

    def pull(self, fragment: int, held_version: int | None) -> None:
        """Pull a fragment's current version, as an update to the held version if possible."""
        if self._link is not None:
            connection = self._link[0]
            connection.send(partial(self._serve, connection, fragment, held_version))

    def post_pull(self, fragment: int, version: int, held_version: int | None) -> None:
        """Post a pull of a version that is not made yet; it arrives like a message, though nothing happens then."""
        if self._link is not None:
            connection = self._link[0]
            serve = partial(self._serve, connection, fragment, held_version)
            posted = PostedPull(connection.up.arrival(), serve, connection)
            self._environment.syncer.post(self._identity.learner, fragment, version, posted)

    def _serve(self, connection: Connection, fragment: int, held_version: int | None) -> None:
        connection.down.transfer(fragment, partial(self._begin_pull, fragment, held_version))

    def _begin_pull(self, fragment: int, held_version: int | None) -> tuple[int, Callable[[], None]]:
        pulled = self._environment.syncer.pull(fragment, held_version)
        self._count(self._environment.traffic.down, pulled.size_bytes)
        return pulled.size_bytes, partial(self._callbacks.received, fragment, pulled)

    def _count(self, counts: dict[str, int], size_bytes: int) -> None:
        region = region_of(self._identity.learner)
        counts[region] = counts.get(region, 0) + size_bytes

    def _disconnect(self, *, clean: bool = False) -> None:
        if self._link is None or not self._link[0].open:
            return
        connection, tell = self._link
        connection.close()
        self.admitted = False
        self._callbacks.over()
        latency = self._identity.profile.link.latency_seconds
        self._environment.clock.after(latency, lambda: self._environment.syncer.over(tell, clean=clean))

    def _handle_order(self, order: Order, progress: float) -> None:
        match order:
            case Fence(refusal=Refusal.LEASE_EXPIRED | Refusal.RESET):
                self._disconnect()
                self._environment.clock.after(self._environment.reconnect_seconds, self.open)
            case Fence(refusal=Refusal.STUCK):
                self.end()
                self._identity.restart()
            case Refuse() | Fence() | Finish():
                self.end()
            case Admit():
                self.incarnation, self.admitted = order.incarnation, True
                self._keep_lease()
                self._callbacks.handle_order(order, progress)
            case _:
                self._callbacks.handle_order(order, progress)

    def _keep_lease(self) -> None:
        """Keep the lease while there is nothing else to send, as long as this session lasts."""
        link, incarnation = self._link, self.incarnation
        if link is None or not link[0].open:
            return

        def again() -> None:
            if self._link is link and self.incarnation == incarnation:
                self.send(LearnerAlive(self._identity.learner, incarnation))
                self._keep_lease()

        self._environment.clock.after(self._environment.job.sync.alive_seconds, again)
