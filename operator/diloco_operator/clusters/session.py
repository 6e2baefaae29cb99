"""One kubeconfig in use: the watches of the namespace that it leads to, its token's renewal, and what is wrong.

While the server is away, only one request at a time is sent to it, at growing pauses. A watch that breaks off is no
lost cluster: it makes that request due at once, and its outcome decides.

Home holds a Lease there. A copy of home that was restored from a backup has the same id and the same kubeconfigs, and
older jobs: it neither writes nor deletes anything while the other one renews the Lease, nor afterwards, as the Lease
says how far the store at home had come.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey
from diloco_operator.api_server.errors import (
    ApiError,
    Call,
    ForbiddenError,
    UnansweredError,
    UnauthorizedError,
    UnavailableError,
)
from diloco_operator.api_server.kinds import REMOTE_CHILDREN, Kind
from diloco_operator.api_server.watches import Watch
from diloco_operator.cluster_state import ClusterSeen, ClusterState, Credential, Expiring
from diloco_operator.clusters.diagnose import Diagnosis, diagnose, forbidden, rights_asked, unsuitable_version
from diloco_operator.clusters.kubeconfig import Kubeconfig
from diloco_operator.clusters.tokens import TokenClaims
from diloco_operator.leases.lease import Clocks, Lease, LeaseLostError, LeaseTimes

_log = logging.getLogger(__name__)
PROBE_SECONDS: Final = 30.0
"""Between two requests that only ask whether the server is there, while it is."""
MOST_SECONDS_AWAY: Final = 60.0
"""The longest pause between these requests while it is not."""
FIRST_SECONDS_AWAY: Final = 1.0
MOST_RIGHTS_ASKED: Final = 50
"""Missing rules that are remembered: there are not as many in the Role."""
LEASE_TIMES: Final = LeaseTimes(duration_seconds=45.0, give_up_seconds=30.0, renew_seconds=10.0)
LEASE_RELEASE_SECONDS: Final = 3.0
"""For the release of the Lease at the end."""
RENEWAL_SLEEP_SECONDS: Final = 600.0
"""The clock is read again after this long: it may have been set meanwhile."""
RENEWAL_PAUSE_SECONDS: Final = (30.0, 3600.0)
"""Before a token is asked for again: the first time, and at most."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Home, as far as it holds Leases in other clusters."""

    lease: str
    """The name of its Leases: another one for each home, and each operator there."""
    identity: str
    """Of this process; random, so that no copy has it."""
    mark: Callable[[], int]
    """How far home's store has come (`Lease.mark`)."""


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
    holder: Holder
    """As whom the Lease there is held."""
    probe_seconds: float = PROBE_SECONDS


class Session:
    """The use of one kubeconfig. What it raises while it runs is the server's doing, and ends no more than this."""

    def __init__(
        self,
        config: Kubeconfig,
        api: Api,
        cache: Cache,
        around: Surroundings,
        keep_token: Callable[[str], Awaitable[None]],
    ) -> None:
        """`keep_token` keeps a new token, and has it used."""
        self.config = config
        self.api = api
        self.cache = cache
        self._around = around
        self._keep_token = keep_token
        self._backoff = Backoff(FIRST_SECONDS_AWAY, MOST_SECONDS_AWAY, around.random)
        self.watches = tuple(self._watch_of(kind) for kind in REMOTE_CHILDREN)
        self.lease = Lease(
            api,
            config.namespace,
            around.holder.lease,
            around.holder.identity,
            Clocks(around.now, around.clock),
            LEASE_TIMES,
            mark=around.holder.mark,
            told=self._not_acquired,
            gate=self.is_up,
        )
        self.returns = 0
        """How often the server has answered after it did not."""
        self._up = asyncio.Event()
        self._due = asyncio.Event()
        self._away: Diagnosis | None = Diagnosis(ClusterState.UNREACHABLE, f"{config.server} has not answered yet")
        self._asked = False
        self._assigns_users: bool | None = None
        self._unsuitable: Diagnosis | None = None
        self._absent: dict[str, Diagnosis] = {}
        self._missing: dict[tuple[str, str], Call] = {}
        self._suspected: dict[tuple[str, str], Call] = {}
        self._not_renewed: Expiring | None = None
        self._seen_at: datetime | None = None
        self._told: ClusterSeen | None = None

    @property
    def seen(self) -> ClusterSeen:
        """The cluster as this kubeconfig shows it."""
        problem = self._problem()
        return ClusterSeen(
            state=ClusterState.READY if problem is None else problem.state,
            message="" if problem is None else problem.message,
            seen_at=self._seen_at,
            namespace=self.config.namespace,
            place="/".join(self.config.place),
            expiring=self._not_renewed or self.config.certificate_life,
            assigns_users=bool(self._assigns_users),
            held=self.lease.held,
            unlisted=self._unlisted(),
            settled=self._asked and (self._away is not None or self._is_known),
        )

    @property
    def _is_known(self) -> bool:
        lease = self.lease
        asked = lease.held or lease.outdated or bool(lease.other) or lease.error is not None
        return asked and self.whole and not self._suspected

    @property
    def whole(self) -> bool:
        """Whether everything is known that the server lets us know."""
        return all(watch.synced.is_set() or watch.forbidden for watch in self.watches)

    async def run(self) -> None:
        """Probe, watch and renew the token until cancelled.

        Raises:
            ExceptionGroup: the server sends what cannot be read, or more than there is room for.
        """
        async with asyncio.TaskGroup() as group:
            for watch in self.watches:
                group.create_task(watch.run())
            group.create_task(self._hold())
            group.create_task(self._probe())
            group.create_task(self._renew())

    async def is_up(self) -> None:
        """Wait until the server answers."""
        await self._up.wait()

    def report(self) -> None:
        """Report if something has changed."""
        seen = replace(self.seen, seen_at=None)
        if seen == self._told:
            return
        if self._told is not None and seen.state is ClusterState.READY and self._told.state is not seen.state:
            _log.info("cluster %s: ready", self._around.name)
        self._told = seen
        self._around.reported()

    def failed(self, error: ApiError) -> None:
        """Take in that a request failed, whoever sent it."""
        found = diagnose(error, self.config.server)
        if isinstance(error, UnansweredError | UnauthorizedError):
            self._lost(error)
        elif rights_asked(error):
            self._suspect(error.call)
        elif found is not None and found.state is ClusterState.UNSUITABLE:
            self._absent[error.call.resource] = found
        if found is not None or rights_asked(error):
            self._due.set()
        self.report()

    def _watch_of(self, kind: Kind) -> Watch:
        return Watch(
            self.api,
            Selection(kind, self.config.namespace, labels=self._around.selector),
            self.cache,
            self._around.changed,
            self._around.clock,
            self._backoff,
            gate=self.is_up,
            failed=self._watch_failed,
            heard=self._heard,
        )

    def _watch_failed(self, error: ApiError) -> None:
        # A watch that breaks off is no lost cluster: what the next probe finds decides.
        if isinstance(error, UnansweredError):
            self._due.set()
            self.report()
        else:
            self.failed(error)

    async def _hold(self) -> None:
        try:
            while True:
                try:
                    await self.lease.acquire()
                    self.report()
                    await self.lease.keep()
                except LeaseLostError as error:
                    _log.warning("cluster %s: %s", self._around.name, error)
                self.report()
        finally:
            with contextlib.suppress(LeaseLostError, TimeoutError):
                async with asyncio.timeout(LEASE_RELEASE_SECONDS):
                    await self.lease.release()

    def _not_acquired(self) -> None:
        if self.lease.error is None:
            self.report()
        else:
            self.failed(self.lease.error)

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
            if error is not None:
                # Whatever else asks for it: the pauses grow.
                await asyncio.sleep(max(self._backoff.seconds(failures), error.retry_after_seconds))
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
            if self._assigns_users is None:
                self._assigns_users = await self.api.assigns_users()
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

    async def _renew(self) -> None:
        """Renew the token once; the new one gets a session, and a renewal, of its own."""
        claims = TokenClaims.of(self.config.token)
        if claims is None:
            return
        backoff, failures = Backoff(*RENEWAL_PAUSE_SECONDS, self._around.random), 0
        while True:
            left_seconds = (claims.renew_at - self._around.now()).total_seconds()
            if left_seconds > 0:
                await asyncio.sleep(min(left_seconds, RENEWAL_SLEEP_SECONDS))
                continue
            await self.is_up()
            why = await self._renewed(claims)
            if not why:
                return
            failures += 1
            if self._not_renewed is None:
                _log.warning("the token for %s is not renewed: %s", self.config.server, why)
                self._not_renewed = Expiring(Credential.TOKEN, claims.issued, claims.expires)
                self.report()
            await asyncio.sleep(backoff.seconds(failures))

    async def _renewed(self, claims: TokenClaims) -> str:
        """Why there is no new token; empty: there is one."""
        try:
            token = await self.api.token(claims.namespace, claims.account, claims.asked_seconds)
            later = TokenClaims.of(token)
            if later is None or not claims.precedes(later):
                return "the new one does not last longer"
            await self._keep_token(token)
        except ApiError as error:
            return str(error)
        return ""

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

    def _lacking(self) -> dict[str, Diagnosis]:
        """Kinds that the server did not have when they were last asked for."""
        closed = {watch.selection.kind.resource for watch in self.watches if watch.forbidden}
        return {resource: found for resource, found in self._absent.items() if resource in closed}

    def _unlisted(self) -> frozenset[str]:
        """Kinds that the server has and does not list. Of one that it does not have, nothing can be there."""
        lacking = self._lacking()
        closed = (watch.selection.kind for watch in self.watches if watch.forbidden)
        return frozenset(kind.name for kind in closed if kind.resource not in lacking)

    def _problem(self) -> Diagnosis | None:
        if self._away is not None:
            return self._away
        if self._unsuitable is not None:
            return self._unsuitable
        for lacking in self._lacking().values():
            return lacking
        if not self.whole:
            return Diagnosis(ClusterState.UNREACHABLE, f"the objects of {self.config.server} are still being listed")
        if self._missing:
            return forbidden(self._missing.values(), self.config.server)
        return None if self.lease.held else self._not_held()

    def _not_held(self) -> Diagnosis:
        lease = self.lease
        where = f"the Lease {lease.name} in namespace {lease.namespace} of {self.config.server}"
        if lease.outdated:
            text = f"{where} is of a later time than this cluster, which was restored from a backup; if nothing else "
            return Diagnosis(ClusterState.HELD_BY_OTHER, f"{text}uses it any more, delete the Lease")
        if lease.error is not None:
            return Diagnosis(ClusterState.FORBIDDEN, f"{where} cannot be written")
        if lease.other:
            text = f"{where} is held by a copy of this cluster, or by its original; stop the operator of one of them"
            return Diagnosis(ClusterState.HELD_BY_OTHER, text)
        return Diagnosis(ClusterState.UNREACHABLE, f"{where} is still being asked for")
