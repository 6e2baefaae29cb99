"""Executes a plan on a job's objects and pods: scale, apply, delete, each with its own outcome.

If an API server rejects one object, the others and the job's status are still written, and what fails in one cluster
ends the work in no other. An object of another owner is never written to, whether or not a cache has it.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, groupby
from typing import Final

from diloco.spec.words import shortlist
from diloco_operator.api_server.errors import (
    REFUSED,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceGoingError,
    NotFoundError,
    UnavailableError,
)
from diloco_operator.api_server.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    POD,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
    Object,
    child_kind,
)
from diloco_operator.api_server.watches import watched_version
from diloco_operator.decide.objects.drift import applied_as, difference, overwriting
from diloco_operator.decide.objects.templates import changes_template
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import JobEvent, Patch, Plan, PodDeletion, Scaling
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import event
from diloco_operator.jobs.at_once import each
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.memory import Memory
from diloco_operator.jobs.observe.places import JobsCluster, Places, slim

_log = logging.getLogger(__name__)
_Write = Callable[[JobsCluster], Awaitable[None]]
_REFUSED = (*REFUSED, NamespaceGoingError)
_STAGES: Final = {
    **dict.fromkeys((NETWORK_POLICY.name, SERVICE.name), 1),
    **dict.fromkeys((DEPLOYMENT.name, STATEFUL_SET.name), 2),
    WORKLOAD.name: 3,
}
"""When objects are applied, by kind: 0, which all others are, is what pods mount."""


@dataclass(slots=True)
class ChildWrites:
    """The writes of one reconcile."""

    places: Places
    job: JobKey
    memory: Memory
    failure: ApiError | None = None
    """The first failure at home that may be temporary: the reconcile is retried after its status is written. One
    elsewhere is retried when that cluster is back, and with the next reconcile."""
    rolled_out: list[str] = field(default_factory=list)
    """Objects whose template was changed while they have pods."""
    _scaled: dict[ChildKey, Object | None] = field(default_factory=dict)
    """Sets as they were before they were scaled down."""
    _unknown: set[ChildKey] = field(default_factory=set)
    """Objects of which it could not be found out whose they are."""
    _over: set[str] = field(default_factory=set)
    """Clusters in which further writes would fail now as well; home is tried again with each part of the plan."""

    async def find_foreign(self, plan: Plan) -> bool:
        """Look for objects of other owners that have the names to be applied. Returns whether there are any."""
        wanted = [child for child in map(ChildKey.of_placed, plan.apply) if child not in plan.adopt]
        found = await self._foreign(wanted)
        self.memory.foreign |= found
        return bool(found)

    async def forget_foreign(self) -> None:
        """Check with requests whether objects of other owners still exist, because those are not watched."""
        self.memory.foreign = await self._foreign(self.memory.foreign, ask=True)

    async def scale(self, plan: Plan) -> bool:
        """Scale sets down. Returns whether there is something new to report."""
        told = self._told
        self._over.discard("")
        await each(lambda one: self._write(one.child, partial(self._scale, one)), plan.scale)
        return self._told != told

    async def apply(self, plan: Plan) -> bool:
        """Apply the planned objects: what pods need before what runs them. Returns whether there is news to report."""
        told = self._told
        self._over.discard("")
        bodies = {ChildKey.of_placed(one): one.body for one in plan.apply}
        wanted = {*bodies, *(scaling.child for scaling in plan.scale)}
        # An object that is no longer to be written no longer fails.
        self.memory.failing = {child: why for child, why in self.memory.failing.items() if child in wanted}
        known = sorted((child for child in bodies if child not in self._unknown), key=_stage)
        for _, stage in groupby(known, key=_stage):
            await each(lambda child: self._write(child, partial(self._apply, child, bodies[child])), [*stage])
        self.rolled_out.sort()
        return self._told != told

    async def delete(self, plan: Plan) -> None:
        """Delete the objects that are no longer wanted."""
        await each(self._delete, plan.delete)

    async def _delete(self, child: ChildKey) -> None:
        self._over.discard("")
        place = self._open(child)
        live = None if place is None else place.known(child)
        if place is None or live is None or not place.owns(live):
            return
        preconditions = {"uid": live["metadata"]["uid"]}
        try:
            await place.api.delete(child_kind(child.kind), place.namespace, child.name, preconditions)
        except (NotFoundError, ConflictError):
            return  # deleted already, or replaced by another: the watch will report it
        except ApiError as error:
            # A leftover object does not make the status wrong, so the status is still written.
            self._take(place, error)
            if not place.cluster:
                self.failure = self.failure or error
            return
        _log.info("%s: %s deleted", self.job, child)

    async def delete_pods(self, plan: Plan) -> tuple[PodDeletion, ...]:
        """Delete lost pods, and pods to be created anew. Returns those that were there and are gone now.

        A deletion with a grace period of 0 does not wait for the pod's node. Each has the pod's uid as precondition, so
        a later pod of the same name is never deleted by mistake. What fails in one cluster keeps nothing from being
        done in another.
        """
        self._over.clear()
        gone = await each(self._delete_pod, plan.delete_pods)
        return tuple(compress(plan.delete_pods, gone))

    async def release_pods(self, plan: Plan) -> bool:
        """Remove the gates of admitted learners' pods. Returns whether there is something new to report."""
        told = self._told
        children = {one.child for one in plan.release_pods}

        async def release(one: Patch) -> None:
            if children.isdisjoint(self.memory.refused):  # what is refused of one is refused of all
                await self._write(one.child, partial(self._release, one.body))

        await each(release, plan.release_pods)
        return self._told != told

    async def write_workload_statuses(self, plan: Plan) -> None:
        """Write the parts of Workloads' statuses that are not Kueue's. One that has changed meanwhile is left."""
        await each(
            lambda one: self._write(one.child, partial(self._write_status, one.child, one.body)), plan.workload_statuses
        )

    async def _release(self, body: Object, place: JobsCluster) -> None:
        with suppress(NotFoundError, ConflictError):  # another pod has its name
            await place.api.overwrite(POD, body)
        self.memory.looked = None
        _log.info("%s: Pod %s may have a node", self.job, body["metadata"]["name"])

    async def _write_status(self, child: ChildKey, body: Object, place: JobsCluster) -> None:
        with suppress(NotFoundError, ConflictError):
            _keep(place, child, await place.api.overwrite(child_kind(child.kind), body, subresource="status"))

    async def retry_deletions(self) -> None:
        """Forget the clusters that would delete a pod now that they have refused to delete.

        A plan to delete pods begins with a change of their set's template, so it has to wait for the right.
        """
        for cluster, one in list(self.memory.pods_forbidden.items()):
            place = self._open(one.child)
            if place is None:
                continue
            try:
                await place.api.try_deletion(POD, place.namespace, one.child.name, one.uid)
            except (ForbiddenError, InvalidError):
                continue
            except (NotFoundError, ConflictError):
                pass  # the right is there, and that pod is gone
            except ApiError as error:
                self._take(place, error)
                continue
            del self.memory.pods_forbidden[cluster]

    async def _delete_pod(self, one: PodDeletion) -> bool:
        place, cluster = self._open(one.child), one.child.cluster
        if place is None:
            return False
        try:
            grace = 0 if one.by_force else None
            await place.api.delete(POD, place.namespace, one.child.name, {"uid": one.uid}, grace_seconds=grace)
        except (NotFoundError, ConflictError):
            self.memory.gone(one.uid)  # its node has come back, or another pod has its name
            return False
        except (ForbiddenError, InvalidError) as error:
            # A missing right, or an admission webhook.
            _log.warning("%s: %s", self.job, error)
            self.memory.pods_forbidden[cluster] = one
            self._over.add(cluster)
            return False
        except ApiError as error:
            self._take(place, error)
            self._over.add(cluster)
            return False
        if one.by_force:
            self.memory.gone(one.uid)
            _log.warning("%s: %s of %s deleted: node %s does not respond", self.job, one.child, one.whose, one.node)
        else:
            self.memory.looked = None  # it is there until its grace period ends
            _log.info("%s: %s of %s deleted, to be created anew", self.job, one.child, one.whose)
        return True

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What to tell of objects that were applied."""
        text = f"{shortlist(self.rolled_out)}: the template of its pods was changed"
        return (event(Reason.ROLLOUT_STARTED, text),) if self.rolled_out else ()

    @property
    def _told(self) -> tuple[int, int, tuple[str, ...]]:
        memory = self.memory
        return len(memory.refused), len(memory.still_failing), tuple(memory.still_reverted.values())

    def _open(self, child: ChildKey) -> JobsCluster | None:
        """The place of a child; None: nothing is written there now."""
        over = child.cluster in self._over
        return None if over else self.places.of(self.job, self.memory.uid, child.cluster)

    def _take(self, place: JobsCluster, error: ApiError) -> None:
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

    async def _write(self, child: ChildKey, write: _Write) -> None:
        """Make one write and record its outcome."""
        place = self._open(child)
        if place is None:
            return
        try:
            await write(place)
        except ApiError as error:
            self._failed(place, child, error)
        else:
            self.memory.failing.pop(child, None)

    def _failed(self, place: JobsCluster, child: ChildKey, error: ApiError) -> None:
        self._take(place, error)
        if isinstance(error, _REFUSED):
            self.memory.refused[child] = error.message
        else:
            self.memory.failed(child, error.message)

    async def _scale(self, scaling: Scaling, place: JobsCluster) -> None:
        child, kind = scaling.child, child_kind(scaling.child.kind)
        metadata = {"namespace": place.namespace, "name": child.name, "uid": scaling.uid}
        patch = {"metadata": metadata, "spec": {"replicas": scaling.replicas}}
        before = place.known(child)  # the watch may report this write before it is answered
        try:
            live = await place.api.overwrite(kind, patch)
        except NotFoundError:
            return  # gone, and its pods with it
        self._scaled[child] = before
        _keep(place, child, live)
        _log.info("%s: %s scaled to %d", self.job, child, scaling.replicas)

    async def _apply(self, child: ChildKey, body: Object, place: JobsCluster) -> None:
        before, contested = place.known(child), self.memory.is_contested(child, body)
        who = await self._reverter(place, child, body) if contested else ""
        made = await self._put(place, child, body)
        if before is not None and changes_template(before, made):
            self.rolled_out.append(str(child))
        _keep(place, child, made)
        self.memory.was_applied(child, applied_as(body, made))
        self.memory.reverted.pop(child, None)
        if contested:
            what = difference(body, made, self._scaled.get(child, before))
            self.memory.reverted[child] = f"{what}; {who}"
            _log.warning("%s: something keeps changing %s: %s", self.job, child, self.memory.reverted[child])
        _log.info("%s: %s applied", self.job, child)

    async def _put(self, place: JobsCluster, child: ChildKey, body: Object) -> Object:
        kind = child_kind(child.kind)
        try:
            return await place.api.apply(kind, body)
        except InvalidError:
            live = place.known(child)
            if live is None or not place.owns(live):
                raise
            # Applying keeps the fields that others have set, and these may conflict with ours.
            return await place.api.overwrite(kind, overwriting(body, live))

    async def _reverter(self, place: JobsCluster, child: ChildKey, body: Object) -> str:
        """Who keeps reverting an object, as the API server names it; it records nobody for a scale of 0."""
        try:
            await place.api.apply(child_kind(child.kind), body, force=False)
        except ConflictError as error:
            return error.message
        return "the API server names nobody: an autoscaler, kubectl scale, a webhook or another operator"

    async def _foreign(self, children: Collection[ChildKey], *, ask: bool = False) -> frozenset[ChildKey]:
        return frozenset(compress(children, await each(partial(self._is_foreign, ask=ask), children)))

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
                self._unknown.add(child)
                self._failed(place, child, error)
                return child in self.memory.foreign
        return live is not None and not place.owns(live)


def _stage(child: ChildKey) -> tuple[bool, int]:
    """Objects of one stage do not depend on each other. Home's stages come first."""
    return bool(child.cluster), _STAGES.get(child.kind, 0)


def _keep(place: JobsCluster, child: ChildKey, live: Object) -> None:
    place.cache.written(child.kind, slim(live), watched_version(place.watches, child.kind, place.namespace))
