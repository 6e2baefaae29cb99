"""One kubeconfig in use: the connection, the watches of the namespace that it leads to, and what is wrong with them.

While the server is away, only one request at a time is sent to it, at growing pauses. A watch that breaks off is no
lost cluster: it makes that request due at once, and its outcome decides.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from diloco.runtime.backoff import Backoff
from diloco_operator.cluster.api import Api, Selection
from diloco_operator.cluster.cache import Cache, GroupKey
from diloco_operator.cluster.errors import (
    ApiError,
    Call,
    ForbiddenError,
    UnansweredError,
    UnauthorizedError,
    UnavailableError,
)
from diloco_operator.cluster.kinds import REMOTE_CHILDREN
from diloco_operator.cluster.watches import Watch
from diloco_operator.clusters.diagnose import Diagnosis, diagnose, forbidden, rights_asked, unsuitable_version
from diloco_operator.clusters.kubeconfig import Kubeconfig
from diloco_operator.clusters.state import ClusterSeen, ClusterState

_log = logging.getLogger(__name__)
PROBE_SECONDS: Final = 30.0
"""Between two requests that only ask whether the server is there, while it is."""
MOST_SECONDS_AWAY: Final = 60.0
"""The longest pause between these requests while it is not."""
FIRST_SECONDS_AWAY: Final = 1.0
MOST_RIGHTS_ASKED: Final = 50
"""Missing rules that are remembered: there are not as many in the Role."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a session is given by the process around it."""

    name: str
    """Of the cluster, for the log: home's namespace and the Secret."""
    selector: str
    """Label selector of this home's objects."""
    changed: Callable[[GroupKey], None]
    """Called for a group of objects after something in it changed."""
    reported: Callable[[], None]
    """Called after what `Session.seen` returns has changed in more than its time."""
    now: Callable[[], datetime]
    clock: Callable[[], float]
    random: Callable[[], float]
    probe_seconds: float = PROBE_SECONDS


class Session:
    """The use of one kubeconfig. Nothing that the server sends ends more than this."""

    def __init__(self, config: Kubeconfig, api: Api, cache: Cache, around: Surroundings) -> None:
        self.config = config
        self.api = api
        self.cache = cache
        self._around = around
        self._backoff = Backoff(FIRST_SECONDS_AWAY, MOST_SECONDS_AWAY, around.random)
        self.watches = tuple(self._watch_of(kind) for kind in REMOTE_CHILDREN)
        self.returns = 0
        """How often the server has answered after it did not."""
        self._up = asyncio.Event()
        self._due = asyncio.Event()
        self._away: Diagnosis | None = Diagnosis(ClusterState.UNREACHABLE, f"{config.server} has not answered yet")
        self._asked = False
        self._unsuitable: Diagnosis | None = None
        self._lacking: dict[str, Diagnosis] = {}
        self._garbled: dict[str, Diagnosis] = {}
        self._missing: dict[tuple[str, str], Call] = {}
        self._suspected: dict[tuple[str, str], Call] = {}
        self._seen_at: datetime | None = None
        self._told: ClusterSeen | None = None
        self._closed = False

    @property
    def seen(self) -> ClusterSeen:
        """The cluster as this kubeconfig shows it."""
        problem = self._problem()
        return ClusterSeen(
            state=ClusterState.READY if problem is None else problem.state,
            message="" if problem is None else problem.message,
            seen_at=self._seen_at,
            namespace=self.config.namespace,
            unlisted=self._unlisted(),
            settled=self._asked and (self._away is not None or (self.whole and not self._suspected)),
        )

    @property
    def whole(self) -> bool:
        """Whether everything is known that the server lets us know."""
        return all(watch.synced.is_set() or watch.shut_out for watch in self.watches)

    async def run(self) -> None:
        """Probe and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches:
                group.create_task(self._kept(watch))
            group.create_task(self._probe())

    async def is_up(self) -> None:
        """Wait until the server answers."""
        await self._up.wait()

    def close(self) -> None:
        """Report nothing more."""
        self._closed = True

    def report(self) -> None:
        """Report if something has changed."""
        seen = replace(self.seen, seen_at=None)
        if self._closed or seen == self._told:
            return
        if self._told is not None and seen.state is ClusterState.READY:
            _log.info("cluster %s: ready", self._around.name)
        self._told = seen
        self._around.reported()

    def told(self) -> None:
        """Report in any case: something beside the session has changed."""
        if not self._closed:
            self._around.reported()

    def failed(self, error: ApiError) -> None:
        """Take in that a request failed, of whomever it was."""
        if isinstance(error, UnansweredError | UnauthorizedError):
            self._lost(error)
        elif rights_asked(error):
            self._suspect(error.call)
        if isinstance(error, UnavailableError | UnauthorizedError | ForbiddenError):
            self._due.set()
        self.report()

    def _watch_of(self, kind: Any) -> Watch:
        selection = Selection(kind, self.config.namespace, labels=self._around.selector)
        return Watch(
            self.api,
            selection,
            self.cache,
            self._around.changed,
            self._around.clock,
            self._backoff,
            gate=self.is_up,
            failed=self._watch_failed,
            heard=self._heard,
        )

    async def _kept(self, watch: Watch) -> None:
        """Run a watch, whatever the server sends."""
        failures = 0
        while True:
            try:
                await watch.run()
            except Exception as error:  # noqa: BLE001 # a server of others may send anything
                failures += 1
                text = f"{self.config.server} sends {watch.selection.kind.resource} that cannot be read"
                self._garbled[watch.selection.kind.resource] = Diagnosis(ClusterState.UNSUITABLE, text)
                watch.shut_out = True
                watch.forget()
                _log.warning("cluster %s: %s (%s); retrying", self._around.name, text, type(error).__name__)
                self.report()
                await asyncio.sleep(self._backoff.seconds(failures))

    def _watch_failed(self, error: ApiError) -> None:
        found = diagnose(error, self.config.server)
        if found is not None and found.state is ClusterState.UNSUITABLE:
            self._lacking[error.call.resource] = found
        if isinstance(error, UnauthorizedError):
            self._lost(error)
        elif rights_asked(error):
            self._suspect(error.call)
        if found is not None or rights_asked(error):
            self._due.set()
        self.report()

    async def _probe(self) -> None:
        failures = 0
        while True:
            self._due.clear()
            error = await self._ask()
            if error is None:
                failures = 0
                await self._ask_rights()
            else:
                failures += 1
                self._lost(error)
            self._asked = True
            self.report()
            if failures:
                # Whatever else asks for it: the pauses grow.
                await asyncio.sleep(max(self._backoff.seconds(failures), error.retry_after_seconds if error else 0.0))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._around.probe_seconds):
                    await self._due.wait()
                # What comes together is one reason to ask.
                await asyncio.sleep(FIRST_SECONDS_AWAY * self._around.random())

    async def _ask(self) -> ApiError | None:
        """Ask for the version; returns why the server counts as away."""
        try:
            answer = await self.api.version()
        except ForbiddenError:
            # It answers and knows us, and that is all that matters here.
            self._unsuitable = None
        except ApiError as error:
            return error
        else:
            self._unsuitable = unsuitable_version(answer, self.config.server)
            if self._unsuitable is not None and self._unsuitable.state is ClusterState.UNREACHABLE:
                return UnavailableError(Call("get", "version"), "the answer is not a version")
        if self._away is not None:
            self.returns += 1
        self._away = None
        self._seen_at = self._around.now()
        self._up.set()
        return None

    async def _ask_rights(self) -> None:
        """Ask about each rule that seemed to be missing."""
        for key, call in [*self._missing.items(), *self._suspected.items()]:
            try:
                allowed = await self.api.may(call)
            except ApiError as error:
                if isinstance(error, UnansweredError | UnauthorizedError):
                    self._lost(error)
                return
            self._suspected.pop(key, None)
            if allowed:
                self._missing.pop(key, None)
            elif len(self._missing) < MOST_RIGHTS_ASKED:
                self._missing[key] = call

    def _suspect(self, call: Call) -> None:
        key = (call.verb, call.resource)
        if key not in self._missing and len(self._suspected) < MOST_RIGHTS_ASKED:
            self._suspected[key] = replace(call, namespace=self.config.namespace, name=None)

    def _lost(self, error: ApiError) -> None:
        unknown = Diagnosis(ClusterState.UNREACHABLE, f"{self.config.server} answers, but not as an API server")
        found = diagnose(error, self.config.server) or unknown
        if self._away is None or self._away != found:
            _log.warning("cluster %s: %s: %s", self._around.name, found.state, found.message)
        self._away = found
        self._up.clear()
        self._due.set()

    def _heard(self) -> None:
        self._seen_at = self._around.now()
        self.report()

    def _absent(self) -> dict[str, Diagnosis]:
        """Kinds that the server does not have."""
        return self._still(self._lacking)

    def _still(self, earlier: dict[str, Diagnosis]) -> dict[str, Diagnosis]:
        """What was found about kinds that are not watched at the moment."""
        shut_out = {watch.selection.kind.resource for watch in self.watches if watch.shut_out}
        return {resource: found for resource, found in earlier.items() if resource in shut_out}

    def _unlisted(self) -> frozenset[str]:
        """Kinds that the server has and does not list. Of one that it does not have, nothing can be there."""
        absent = self._absent()
        shut_out = (watch.selection.kind for watch in self.watches if watch.shut_out)
        return frozenset(kind.name for kind in shut_out if kind.resource not in absent)

    def _problem(self) -> Diagnosis | None:
        if self._away is not None:
            return self._away
        if self._unsuitable is not None:
            return self._unsuitable
        unusable = [*self._absent().values(), *self._still(self._garbled).values()]
        if unusable:
            return unusable[0]
        if not self.whole:
            return Diagnosis(ClusterState.UNREACHABLE, f"the objects of {self.config.server} are still being listed")
        return forbidden(self._missing.values(), self.config.server) if self._missing else None
