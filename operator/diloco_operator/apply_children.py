"""Executes a plan on a job's objects: scale, apply, delete, each with its own outcome.

If the API server rejects one object, the others and the job's status are still written. An object of another owner is
never written to, whether or not a cache has it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from diloco_operator.cluster.api import Api, Object
from diloco_operator.cluster.cache import Cache, ObjectKey
from diloco_operator.cluster.errors import (
    REFUSED,
    ApiError,
    ConflictError,
    InvalidError,
    NamespaceGoingError,
    NotFoundError,
    UnavailableError,
)
from diloco_operator.cluster.kinds import child_kind
from diloco_operator.cluster.watches import Watch, watched_version
from diloco_operator.decide.drift import overwriting
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan, Scaling
from diloco_operator.observe.jobs import JobKey
from diloco_operator.observe.observer import Memory, is_owned
from diloco_operator.repairs import PAUSE_SECONDS

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ChildWrites:
    """The writes of one reconcile, each made once."""

    api: Api
    cache: Cache
    watches: tuple[Watch, ...]
    job: JobKey
    memory: Memory
    failure: ApiError | None = None
    """The first failure that may be temporary: the reconcile is retried after its status is written."""
    _done: set[ChildKey | Scaling] = field(default_factory=set)

    async def find_foreign(self, plan: Plan) -> bool:
        """Look for objects of other owners that have the names to be applied. Returns whether there are any."""
        new = [child for child in map(ChildKey.of, plan.apply) if child not in self._done]
        found = {child for child in new if await self._is_foreign(child)}
        self.memory.foreign |= found
        return bool(found)

    async def forget_foreign(self) -> None:
        """Check with requests whether objects of other owners still exist, because those are not watched."""
        still = {child for child in self.memory.foreign if await self._is_foreign(child, ask=True)}
        self.memory.foreign = frozenset(still)

    async def scale(self, plan: Plan) -> bool:
        """Scale sets down. Returns whether there is something new to report."""
        told = self._told
        for scaling in plan.scale:
            if scaling in self._done:
                continue
            self._done.add(scaling)
            if not await self._write(scaling.child, partial(self._scale, scaling)):
                break
        return self._told != told

    async def apply(self, plan: Plan) -> bool:
        """Apply the planned objects. Returns whether there is something new to report."""
        told = self._told
        wanted = {ChildKey.of(body) for body in plan.apply} | {scaling.child for scaling in plan.scale}
        # An object that is no longer to be written no longer fails.
        self.memory.failing = {child: why for child, why in self.memory.failing.items() if child in wanted}
        for body in plan.apply:
            child = ChildKey.of(body)
            if child in self._done:
                continue
            self._done.add(child)
            if not await self._write(child, partial(self._apply, child, body)):
                break
        return self._told != told

    async def delete(self, plan: Plan) -> None:
        """Delete the objects that are no longer wanted."""
        for child in plan.delete:
            live = self._known(child)
            if live is None or not is_owned(live, self.memory.uid):
                continue
            preconditions = {"uid": live["metadata"]["uid"]}
            try:
                await self.api.delete(child_kind(child.kind), self.job.namespace, child.name, preconditions)
            except (NotFoundError, ConflictError):
                continue  # deleted already, or replaced by another: the watch will report it
            except NamespaceGoingError:
                raise
            except ApiError as error:
                # A leftover object does not make the status wrong, so the status is still written.
                _log.warning("%s: %s", self.job, error)
                self.failure = self.failure or error
                continue
            _log.info("%s: %s %s deleted", self.job, child.kind, child.name)

    @property
    def _told(self) -> tuple[int, int]:
        return len(self.memory.refused), len(self.memory.still_failing)

    async def _write(self, child: ChildKey, write: Callable[[], Awaitable[None]]) -> bool:
        """Make one write and record its outcome. Returns False if further writes would fail now as well."""
        try:
            await write()
        except NamespaceGoingError:
            raise
        except REFUSED as error:
            _log.warning("%s rejected: %s", self.job, error)
            self.memory.refused[child] = error.message
        except ApiError as error:
            _log.warning("%s: %s", self.job, error)
            self.failure = self.failure or error
            self.memory.failed(child, error.message)
            # Without an answer, or after a 401 or 429, the next write would fail as well.
            return isinstance(error, UnavailableError) and error.code != 0
        else:
            self.memory.failing.pop(child, None)
        return True

    async def _scale(self, scaling: Scaling) -> None:
        child, kind = scaling.child, child_kind(scaling.child.kind)
        metadata = {"namespace": self.job.namespace, "name": child.name, "uid": scaling.uid}
        patch = {"metadata": metadata, "spec": {"replicas": scaling.replicas}}
        try:
            live = await self.api.overwrite(kind, patch)
        except NotFoundError:
            return  # gone, and its pods with it
        self._keep(child, live)
        _log.info("%s: %s %s scaled to %d", self.job, child.kind, child.name, scaling.replicas)

    async def _apply(self, child: ChildKey, body: Object) -> None:
        self._keep(child, await self._put(child, body))
        _log.info("%s: %s %s applied", self.job, child.kind, child.name)
        if self.memory.repairs.applied(child, body):
            _log.warning(
                "%s: something keeps reverting %s %s; the next repair is in %.0f s at the earliest",
                *(self.job, child.kind, child.name, PAUSE_SECONDS),
            )

    async def _put(self, child: ChildKey, body: Object) -> Object:
        kind = child_kind(child.kind)
        try:
            return await self.api.apply(kind, body)
        except InvalidError:
            live = self._known(child)
            if live is None or not is_owned(live, self.memory.uid):
                raise
            # Applying keeps the fields that others have set, and these may conflict with ours.
            return await self.api.overwrite(kind, overwriting(body, live))

    def _keep(self, child: ChildKey, live: Object) -> None:
        self.cache.written(child.kind, live, watched_version(self.watches, child.kind, self.job.namespace))

    def _known(self, child: ChildKey) -> Object | None:
        return self.cache.get(ObjectKey(child.kind, self.job.namespace, child.name))

    async def _is_foreign(self, child: ChildKey, *, ask: bool = False) -> bool:
        """Whether another owner's object has that name. Sends a request if it is not in the cache, or with ``ask``."""
        live = None if ask else self._known(child)
        if live is None:
            live = await self.api.find_metadata(child_kind(child.kind), self.job.namespace, child.name)
        return live is not None and not is_owned(live, self.memory.uid)
