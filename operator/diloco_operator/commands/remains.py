"""Objects of jobs in a remote cluster: which home they belong to, whether their job still exists, and their deletion.

Only metadata is read, and of StatefulSets also how many pods run: no Secret's content leaves the cluster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diloco.runtime.output import escaped
from diloco_operator import labels
from diloco_operator.api_server.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from diloco_operator.api_server.kinds import CLAIM, JOB, REMOTE_CHILDREN, STATEFUL_SET, Kind
from diloco_operator.objects import labels_of, mapping, metadata_of, uid_of

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

KINDS: Final = (*REMOTE_CHILDREN, CLAIM)
"""StatefulSets first: learners stop before the certificates that they use are gone. Claims are made by the
StatefulSets' controller, with the labels in their templates."""


@dataclass(frozen=True, slots=True)
class Remain:
    """One object of a job of some home."""

    kind: Kind
    namespace: str
    name: str
    uid: str
    home: str
    job_uid: str
    job: str
    pods: int = 0
    """Pods that it runs now."""
    home_namespace: str = ""
    """The namespace of its job at home."""

    @property
    def at_home(self) -> str:
        """Its job, as ``namespace/name``."""
        return f"{self.home_namespace or '-'}/{self.job or '-'}"

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


async def remains(
    api: "Api", namespace: str | None, unread: Callable[[str], object] = lambda _: None
) -> tuple[Remain, ...]:
    """Every object that bears a home's id and a job's uid, in one namespace or in all; those of a kind together.

    ``unread`` is told why claims are missing, if the user may not list them: nothing else needs that right.

    Raises:
        ApiError: a list cannot be read.
    """
    from diloco_operator.api_server.api import Selection

    found: list[Remain | None] = []
    for kind in KINDS:
        selector = f"{labels.HOME},{labels.JOB_UID}"
        selection = Selection(kind, namespace, labels=selector, metadata_only=kind is not STATEFUL_SET)
        try:
            found += [remain(kind, item) for item in await api.items(selection)]
        except NotFoundError:
            continue  # the cluster does not serve this kind, so there are none
        except ForbiddenError as error:
            if kind is not CLAIM:
                raise
            unread(str(error))
    return tuple(one for one in found if one is not None)


def remain(kind: Kind, item: Mapping[str, Any]) -> Remain | None:
    """An object as an API server returns it; None: it lacks a uid or a label, so nothing can be said of it."""
    metadata, own = metadata_of(item), labels_of(item)
    texts = [metadata.get(key) for key in ("namespace", "name", "uid")]
    texts += [own.get(key) for key in (labels.HOME, labels.JOB_UID)]
    if not all(isinstance(text, str) and text for text in texts):
        return None
    space, name, uid, home, job_uid = (escaped(str(text)) for text in texts)
    job, home_namespace = (escaped(str(own.get(key, ""))) for key in (labels.JOB, labels.HOME_NAMESPACE))
    running = mapping(item.get("status")).get("replicas")
    pods = running if isinstance(running, int) else 0
    return Remain(kind, space, name, uid, home, job_uid, job, pods, home_namespace)


async def job_uids(api: "Api") -> frozenset[str]:
    """The uids of all jobs of all namespaces. Whole, or an error.

    Raises:
        ApiError: they cannot be listed, or the cluster has no such resource.
    """
    from diloco_operator.api_server.api import Selection

    return frozenset(map(uid_of, await api.items(Selection(JOB, metadata_only=True))))


def orphans(found: Iterable[Remain], home: str, jobs: AbstractSet[str]) -> tuple[Remain, ...]:
    """Those of one home whose job is not in ``jobs``, the uids of all of that home's jobs.

    The objects must have been listed before the jobs: otherwise a job made in between would be missing.
    """
    return tuple(one for one in found if one.home == home and one.job_uid not in jobs)


async def deleted(api: "Api", chosen: Sequence[Remain]) -> dict[Remain, str]:
    """Delete objects in order, each only if it still has its uid. Returns why those that are still there are."""
    problems = {}
    for one in chosen:
        try:
            await api.delete(one.kind, one.namespace, one.name, {"uid": one.uid})
        except (NotFoundError, ConflictError):
            continue  # gone already, or another object by now, which is not ours
        except ApiError as error:
            problems[one] = str(error)
    return problems
