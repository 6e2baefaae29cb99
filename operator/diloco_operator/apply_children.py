"""Executes a plan on a job's objects: scale, apply, delete, each with its own outcome.

If an API server rejects one object, the others and the job's status are still written, and what fails in one cluster
ends the work in no other. An object of another owner is never written to, whether or not a cache has it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from diloco_operator.cluster.errors import (
    REFUSED,
    ApiError,
    ConflictError,
    InvalidError,
    NamespaceGoingError,
    NotFoundError,
    UnavailableError,
)
from diloco_operator.cluster.kinds import Object, child_kind
from diloco_operator.cluster.watches import watched_version
from diloco_operator.decide.drift import overwriting
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan, Scaling
from diloco_operator.manifests.holds import left_over
from diloco_operator.observe.jobs import JobKey
from diloco_operator.observe.observer import Memory
from diloco_operator.observe.places import Place, Places
from diloco_operator.repairs import PAUSE_SECONDS

_log = logging.getLogger(__name__)
_Write = Callable[[Place], Awaitable[None]]
_REFUSED = (*REFUSED, NamespaceGoingError)


@dataclass(slots=True)
class ChildWrites:
    """The writes of one reconcile, each made once."""

    places: Places
    job: JobKey
    memory: Memory
    failure: ApiError | None = None
    """The first failure at home that may be temporary: the reconcile is retried after its status is written. One
    elsewhere is retried when that cluster is back, and with the next reconcile."""
    _done: set[ChildKey | Scaling] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)
    """Clusters in which further writes would fail now as well; home is tried again with each part of the plan."""

    async def find_foreign(self, plan: Plan) -> bool:
        """Look for objects of other owners that have the names to be applied. Returns whether there are any."""
        found = set()
        for child in map(ChildKey.of_placed, plan.apply):
            if child not in self._done | plan.adopt and await self._is_foreign(child):
                found.add(child)
        self.memory.foreign |= found
        return bool(found)

    async def forget_foreign(self) -> None:
        """Check with requests whether objects of other owners still exist, because those are not watched."""
        still = {child for child in self.memory.foreign if await self._is_foreign(child, ask=True)}
        self.memory.foreign = frozenset(still)

    async def scale(self, plan: Plan) -> bool:
        """Scale sets down. Returns whether there is something new to report."""
        told = self._told
        self._over.discard("")
        for scaling in plan.scale:
            if scaling not in self._done:
                await self._write(scaling, scaling.child, partial(self._scale, scaling))
        return self._told != told

    async def apply(self, plan: Plan) -> bool:
        """Apply the planned objects. Returns whether there is something new to report."""
        told = self._told
        self._over.discard("")
        bodies = {ChildKey.of_placed(one): one.body for one in plan.apply}
        wanted = {*bodies, *(scaling.child for scaling in plan.scale)}
        # An object that is no longer to be written no longer fails.
        self.memory.failing = {child: why for child, why in self.memory.failing.items() if child in wanted}
        for child, body in bodies.items():
            if child not in self._done:
                await self._write(child, child, partial(self._apply, child, body))
        return self._told != told

    async def delete(self, plan: Plan) -> None:
        """Delete the objects that are no longer wanted."""
        for child in plan.delete:
            self._over.discard("")
            place = self._open(child)
            live = None if place is None else place.known(child)
            if place is None or live is None or not place.owns(live):
                continue
            preconditions = {"uid": live["metadata"]["uid"]}
            try:
                await place.api.delete(child_kind(child.kind), place.namespace, child.name, preconditions)
            except (NotFoundError, ConflictError):
                continue  # deleted already, or replaced by another: the watch will report it
            except ApiError as error:
                # A leftover object does not make the status wrong, so the status is still written.
                self._take(place, error)
                if not place.cluster:
                    self.failure = self.failure or error
                continue
            _log.info("%s: %s deleted", self.job, child)

    @property
    def _told(self) -> tuple[int, int]:
        return len(self.memory.refused), len(self.memory.still_failing)

    def _open(self, child: ChildKey) -> Place | None:
        """The place of a child; None: nothing is written there now."""
        over = child.cluster in self._over
        return None if over else self.places.of(self.job, self.memory.uid, child.cluster)

    def _take(self, place: Place, error: ApiError) -> None:
        """Take in a failure that does not end this reconcile.

        Raises:
            NamespaceGoingError: the job is deleted with its namespace.
        """
        if isinstance(error, NamespaceGoingError) and not place.cluster:
            raise error
        _log.warning("%s%s: %s", self.job, f" in cluster {place.cluster}" if place.cluster else "", error)
        place.failed(error)
        if not place.cluster and not isinstance(error, REFUSED):
            self.failure = self.failure or error
        # Without an answer, or after a 401 or 429, the next write would fail as well.
        if not isinstance(error, _REFUSED) and not (isinstance(error, UnavailableError) and error.code != 0):
            self._over.add(place.cluster)

    async def _write(
        self, what: ChildKey | Scaling, child: ChildKey, write: Callable[[Place], Awaitable[None]]
    ) -> None:
        """Make one write and record its outcome."""
        place = self._open(child)
        if place is None:
            return
        self._done.add(what)
        try:
            await write(place)
        except ApiError as error:
            self._failed(place, child, error)
        else:
            self.memory.failing.pop(child, None)

    def _failed(self, place: Place, child: ChildKey, error: ApiError) -> None:
        self._take(place, error)
        if isinstance(error, _REFUSED):
            self.memory.refused[child] = error.message
        else:
            self.memory.failed(child, error.message)

    async def _scale(self, scaling: Scaling, place: Place) -> None:
        child, kind = scaling.child, child_kind(scaling.child.kind)
        metadata = {"namespace": place.namespace, "name": child.name, "uid": scaling.uid}
        patch = {"metadata": metadata, "spec": {"replicas": scaling.replicas}}
        try:
            live = await place.api.overwrite(kind, patch)
        except NotFoundError:
            return  # gone, and its pods with it
        _keep(place, child, live)
        _log.info("%s: %s scaled to %d", self.job, child, scaling.replicas)

    async def _apply(self, child: ChildKey, body: Object, place: Place) -> None:
        _keep(place, child, await self._put(place, child, body))
        _log.info("%s: %s applied", self.job, child)
        if self.memory.repairs.applied(child, body):
            _log.warning(
                "%s: something keeps reverting %s; the next repair is in %.0f s at the earliest",
                *(self.job, child, PAUSE_SECONDS),
            )

    async def _put(self, place: Place, child: ChildKey, body: Object) -> Object:
        kind = child_kind(child.kind)
        try:
            applied = await place.api.apply(kind, body)
            return await place.api.overwrite(kind, overwriting(body, applied)) if left_over(body, applied) else applied
        except InvalidError:
            live = place.known(child)
            if live is None or not place.owns(live):
                raise
            # Applying keeps the fields that others have set, and these may conflict with ours.
            return await place.api.overwrite(kind, overwriting(body, live))

    async def _is_foreign(self, child: ChildKey, *, ask: bool = False) -> bool:
        """Whether another owner's object has that name. Sends a request if it is not in the cache, or with ``ask``."""
        place = self._open(child)
        if place is None:
            return child in self.memory.foreign
        live = None if ask else place.known(child)
        if live is None:
            try:
                live = await place.api.find_metadata(child_kind(child.kind), place.namespace, child.name)
            except ApiError as error:
                if not place.cluster:
                    raise
                # What is not known to be ours is not written to.
                self._done.add(child)
                self._failed(place, child, error)
                return child in self.memory.foreign
        return live is not None and not place.owns(live)


def _keep(place: Place, child: ChildKey, live: Object) -> None:
    place.cache.written(child.kind, live, watched_version(place.watches, child.kind, place.namespace))
