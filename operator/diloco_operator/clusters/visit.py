"""A short use of a cluster that no job names: one connection, one list for each kind, nothing watched.

Such a cluster may still hold what a job left there. It is not followed: that would take a connection for each kind and
cluster, for as long as its Secret exists.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from diloco_operator import labels
from diloco_operator.cluster.api import Api, Selection
from diloco_operator.cluster.errors import ForbiddenError, NotFoundError
from diloco_operator.cluster.kinds import REMOTE_CHILDREN, Kind, Object
from diloco_operator.cluster.limits import REMOTE
from diloco_operator.cluster.requests import Seams
from diloco_operator.clusters.home import ClusterKey, HomeSecrets
from diloco_operator.clusters.remote import client_for, read_kubeconfig

MOST_OBJECTS: Final = 10_000
"""Objects of a kind that are looked at in one visit."""
_READ: Final = ("namespace", "name", "uid", "labels", "deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Visited:
    """A cluster while it is visited."""

    api: Api
    namespace: str
    """The one that its kubeconfig leads to."""

    async def objects(self, selector: str) -> list[Object]:
        """The metadata of all objects that the operator makes there and that have these labels.

        Kinds that it may not list, or that are not there, count as empty.

        Raises:
            ApiError: the cluster does not answer.
        """
        found: list[Object] = []
        for kind in REMOTE_CHILDREN:
            try:
                found += await self._of_kind(kind, selector)
            except (ForbiddenError, NotFoundError):
                continue
        return found

    async def _of_kind(self, kind: Kind, selector: str) -> list[Object]:
        found: list[Object] = []
        async for page in self.api.pages(Selection(kind, self.namespace, labels=selector, metadata_only=True)):
            found += (_reduced(kind, item) for item in page.get("items") or ())
            if len(found) >= MOST_OBJECTS:
                break  # the next visit finds the rest
        return found


def _reduced(kind: Kind, item: Object) -> Object:
    metadata = item["metadata"]
    return {"kind": kind.name, "metadata": {field: metadata[field] for field in _READ if field in metadata}}


@asynccontextmanager
async def visiting(secrets: HomeSecrets, key: ClusterKey, seams: Seams) -> AsyncIterator[Visited]:
    """Use a cluster within an ``async with``.

    Raises:
        KubeconfigError: it has no kubeconfig that can be used.
        ApiError: the Secret cannot be read.
    """
    config = (await read_kubeconfig(secrets, key)).config
    client = client_for(config)
    try:
        yield Visited(Api(client, labels.FIELD_MANAGER, seams, REMOTE), config.namespace)
    finally:
        await client.close()
