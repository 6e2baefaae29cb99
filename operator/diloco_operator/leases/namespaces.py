"""Where this operator acts: of several operators that watch a namespace, only the holder of the Lease there.

The holder is an operator, not a process of it: within an operator, its own Lease decides which process works. So a new
process acts at once, and these Leases are renewed seldom. They are taken when a namespace has its first job. Who takes
an operator's rights away, as by uninstalling it, also frees its namespaces: the binding of its rights owns the Leases.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import REFUSED, ForbiddenError, NamespaceGoingError, NotFoundError
from diloco_operator.api_server.kinds import ROLE_BINDING, Kind, Object
from diloco_operator.leases.lease import Clocks, Lease, LeaseLostError, LeaseTimes
from diloco_operator.objects import uid_of
from diloco_operator.options import JOBS_LEASE

_log = logging.getLogger(__name__)
TIMES: Final = LeaseTimes(duration_seconds=120.0, give_up_seconds=90.0, renew_seconds=30.0)
"""An operator whose process is replaced within two minutes keeps its namespaces."""


@dataclass(slots=True)
class Namespaces:
    """The Lease of each namespace that has jobs."""

    api: Api
    operator: str
    """This operator's identity, which all of its processes have."""
    clocks: Clocks
    changed: Callable[[str], None]
    """Called with a namespace in which this operator acts from now on, or of whose Lease something else is known."""
    binding: tuple[Kind, str] | None = None
    """The binding of this operator's rights, in each namespace or in none. None: not known."""
    _leases: dict[str, Lease] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)
    """By namespace: why its Lease was refused when that was last told."""
    _renewals: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)

    async def run(self) -> None:
        """Take and renew Leases until cancelled."""
        async with self._group:
            await asyncio.Event().wait()

    def acts_in(self, namespace: str) -> bool:
        """Whether this operator acts in a namespace. The first time, it begins to ask for the Lease there."""
        lease = self._leases.get(namespace)
        if lease is None:
            lease = Lease(self.api, namespace, JOBS_LEASE, self.operator, self.clocks, TIMES)
            lease.told, lease.owners = partial(self._tell, lease), partial(self._owners, namespace)
            self._leases[namespace] = lease
            self._renewals[namespace] = self._group.create_task(self._hold(lease))
        # In a namespace that is being deleted no Lease can be made, but jobs wait for their finalizer to be removed.
        return lease.held or (not lease.other and isinstance(lease.error, NamespaceGoingError))

    def is_own(self, namespace: str) -> bool:
        """Whether no other operator looks after a namespace: this one acts there, or its Lease is refused."""
        lease = self._leases.get(namespace)
        return lease is not None and (lease.held or bool(self.refused(namespace)))

    def refused(self, namespace: str) -> str:
        """Why the Lease of a namespace may not be had, where a retry alone cannot help; empty: it may."""
        lease = self._leases.get(namespace)
        if lease is None or lease.held or not isinstance(lease.error, REFUSED):
            return ""
        return f"lease {namespace}/{lease.name}: {lease.error.message}"

    def leave(self, namespace: str) -> None:
        """Let the Lease of a namespace without jobs expire. The object stays, for the next job there."""
        if self._leases.pop(namespace, None) is not None:
            self._told.pop(namespace, None)
            self._renewals.pop(namespace).cancel()

    def held_by_others(self) -> Iterator[str]:
        """Each namespace in which another operator acts, with its name."""
        for namespace, lease in sorted(self._leases.items()):
            if lease.other and not lease.held:
                yield f"not acting in {namespace}: lease {namespace}/{lease.name} is held by {lease.other}"

    def problems(self) -> Iterator[str]:
        """Each namespace whose Lease cannot be asked for."""
        for namespace, lease in sorted(self._leases.items()):
            if lease.error is not None and not lease.held:
                yield f"not acting in {namespace}: lease {namespace}/{lease.name}: {lease.error.message}"

    def _tell(self, lease: Lease) -> None:
        refused = self.refused(lease.namespace)
        if self._told.get(lease.namespace, "") != refused:
            self._told[lease.namespace] = refused
            self.changed(lease.namespace)

    async def _owners(self, namespace: str) -> list[Object]:
        if self.binding is None:
            return []
        kind, name = self.binding
        try:
            found = await self.api.get(kind, namespace if kind is ROLE_BINDING else None, name)
        except (NotFoundError, ForbiddenError) as error:
            _log.warning("lease %s/%s stays when this operator is uninstalled: %s", namespace, JOBS_LEASE, error)
            return []
        return [{"apiVersion": kind.api_version, "kind": kind.name, "name": name, "uid": uid_of(found)}]

    async def _hold(self, lease: Lease) -> None:
        while True:
            try:
                await lease.acquire()
                self.changed(lease.namespace)
                await lease.keep()
            except LeaseLostError as error:
                _log.warning("not acting in %s any more: %s", lease.namespace, error)
