"""Executes the part of a plan that deletes pods: those on nodes that do not respond, and those to be created anew.

A deletion with a grace period of 0 removes the pod from the API server without waiting for its node. Each has the pod's
uid as precondition, so a later pod of the same name is never deleted by mistake.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from diloco_operator.cluster.errors import ApiError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from diloco_operator.cluster.kinds import POD
from diloco_operator.decide.plan import Plan, PodDeletion
from diloco_operator.observe.jobs import JobKey
from diloco_operator.observe.observer import Memory
from diloco_operator.observe.places import Places

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 0
"""The grace period: the node is not asked."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the deletions."""

    deleted: tuple[PodDeletion, ...]
    refused: bool
    """An API server has refused one, which was not known before."""


@dataclass(slots=True)
class LostPodWrites:
    """The deletions of one reconcile, each made once."""

    places: Places
    job: JobKey
    memory: Memory
    failure: ApiError | None = None
    """The first failure at home that may be temporary."""
    _done: set[str] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)
    """Clusters in which further deletions would fail now as well."""

    async def delete(self, plan: Plan) -> Done:
        """Delete the pods. What fails in one cluster keeps nothing from being done in another."""
        forbidden = self.memory.pods_forbidden
        wanted = [one for one in plan.delete_pods if one.uid not in self._done]
        deleted = tuple([one for one in wanted if await self._delete(one)])
        return Done(deleted, refused=self.memory.pods_forbidden != forbidden)

    async def _delete(self, one: PodDeletion) -> bool:
        """Delete a pod. Returns whether it was there, and is gone now."""
        cluster = one.child.cluster
        place = None if cluster in self._over else self.places.of(self.job, self.memory.uid, cluster)
        if place is None:
            return False
        self._done.add(one.uid)
        try:
            grace = _AT_ONCE if one.by_force else None
            await place.api.delete(POD, place.namespace, one.child.name, {"uid": one.uid}, grace_seconds=grace)
        except (NotFoundError, ConflictError):
            self.memory.gone(one.uid)  # its node has come back, or another pod has its name
            return False
        except (ForbiddenError, InvalidError) as error:
            # A missing right, or an admission webhook. It is asked again after a while, with one pod.
            _log.warning("%s: %s", self.job, error)
            self.memory.pods_forbidden |= {cluster}
            self._over.add(cluster)
            return False
        except ApiError as error:
            _log.warning("%s: %s", self.job, error)
            self._over.add(cluster)
            place.failed(error)
            if not cluster:
                self.failure = self.failure or error
            return False
        if one.by_force:
            self.memory.gone(one.uid)
            _log.warning("%s: %s of %s deleted by force: node %s does not respond", *_told(self.job, one))
        else:
            self.memory.looked = None  # it is there until its grace period ends
            _log.info("%s: %s of %s deleted, to be created anew", self.job, one.child, one.whose)
        return True


def _told(job: JobKey, one: PodDeletion) -> tuple[str, str, str, str]:
    return str(job), str(one.child), one.whose, one.node
