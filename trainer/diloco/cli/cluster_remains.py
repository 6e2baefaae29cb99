"""Objects of jobs in a remote cluster: which home they belong to, whether their job still exists, and their deletion.

Only metadata is read, and of StatefulSets also how many learners run: no Secret's content leaves the cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from diloco.cli.cluster_access import ApiServer, ClusterError, ForbiddenError

HOME_LABEL: Final = "diloco.dev/home"
"""On every object that an operator made in a remote cluster: the id of its home."""
JOB_UID_LABEL: Final = "diloco.dev/job-uid"
"""On the same objects: the uid of their job."""
HOME_NAMESPACE_LABEL: Final = "diloco.dev/home-namespace"
"""On the same objects: the namespace of their job at home."""
JOB_LABEL: Final = "diloco.dev/job"
"""On every object of a job: its name."""
HOME_ID_KEY: Final = "id"
"""The key with the home's id in the operator's ConfigMap `home_config_map`."""

_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_WHOLE: Final = "application/json"
_PAGE_OBJECTS: Final = 500
_MOST_PAGES: Final = 1000
"""Most pages of a list (ours): half a million objects. A server that always names a next page is not followed on."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that a home makes in a remote cluster."""

    name: str
    plural: str
    root: str
    """The path of its API group and version."""

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Its URL's path."""
        parts = ["namespaces", namespace] if namespace is not None else []
        return "/".join([self.root, *(quote(part, safe="") for part in [*parts, self.plural, name] if part)])


STATEFUL_SET: Final = Kind("StatefulSet", "statefulsets", "/apis/apps/v1")
CLAIM: Final = Kind("PersistentVolumeClaim", "persistentvolumeclaims", "/api/v1")
"""Made by the StatefulSets' controller, with the labels in their templates."""
KINDS: Final = (
    STATEFUL_SET,  # first: learners stop before the certificates that they use are gone
    Kind("Secret", "secrets", "/api/v1"),
    Kind("ConfigMap", "configmaps", "/api/v1"),
    Kind("Service", "services", "/api/v1"),
    Kind("NetworkPolicy", "networkpolicies", "/apis/networking.k8s.io/v1"),
    CLAIM,
)
_JOB: Final = Kind("DiLoCoJob", "dilocojobs", "/apis/diloco.dev/v1alpha1")


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
    learners: int = 0
    """Learners that it runs now."""
    home_namespace: str = ""
    """The namespace of its job at home."""

    @property
    def at_home(self) -> str:
        """Its job, as ``namespace/name``."""
        return f"{self.home_namespace or '-'}/{self.job or '-'}"

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a deletion."""

    remain: Remain
    problem: str = ""
    """Why it is still there; empty: it is deleted, or was already gone or replaced by another object."""


def remains(
    server: ApiServer, namespace: str | None, unread: Callable[[str], object] = lambda _: None
) -> tuple[Remain, ...]:
    """Every object that bears a home's id and a job's uid, in one namespace or in all; those of a kind together.

    ``unread`` is told why claims are missing, if the user may not list them: nothing else needs that right.

    Raises:
        ClusterError: a list cannot be read.
    """
    found: list[Remain | None] = []
    for kind in KINDS:
        accept = _WHOLE if kind is STATEFUL_SET else _METADATA_ONLY
        items = _items(server, kind, namespace, f"{HOME_LABEL},{JOB_UID_LABEL}", accept)
        try:
            found += [remain(kind, item) for item in items]
        except ForbiddenError as error:
            if kind is not CLAIM:
                raise
            unread(str(error))
    return tuple(one for one in found if one is not None)


def remain(kind: Kind, item: Mapping[str, Any]) -> Remain | None:
    """An object as an API server returns it; None: it lacks a uid or a label, so nothing can be said of it."""
    metadata = item.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    labels = metadata.get("labels")
    labels = labels if isinstance(labels, Mapping) else {}
    status = item.get("status")
    running = status.get("replicas") if isinstance(status, Mapping) else 0
    texts = [metadata.get(key) for key in ("namespace", "name", "uid")]
    texts += [labels.get(key) for key in (HOME_LABEL, JOB_UID_LABEL)]
    if not all(isinstance(text, str) and text for text in texts):
        return None
    space, name, uid, home, job_uid = (_printable(str(text)) for text in texts)
    job, home_namespace = (_printable(str(labels.get(key, ""))) for key in (JOB_LABEL, HOME_NAMESPACE_LABEL))
    learners = running if isinstance(running, int) else 0
    return Remain(kind, space, name, uid, home, job_uid, job, learners, home_namespace)


def home_config_map(lease: str) -> str:
    """The name of the ConfigMap with the home's id, in the operator's namespace; ``lease``: of its Lease."""
    return f"{lease}-home"


def home_id(home: ApiServer, namespace: str, lease: str) -> str:
    """The id of a home, from its operator's ConfigMap.

    Raises:
        ClusterError: it cannot be read, or there is none.
    """
    name = home_config_map(lease)
    answer = home.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    data = answer.said.get("data")
    found = data.get(HOME_ID_KEY) if isinstance(data, Mapping) else None
    if answer.status != HTTPStatus.OK or not isinstance(found, str) or not found:
        raise ClusterError(f"{home.url} has no id of a home in ConfigMap {namespace}/{name}")
    return _printable(found)


def job_uids(home: ApiServer) -> frozenset[str]:
    """The uids of all jobs of all namespaces. Whole, or an error.

    Raises:
        ClusterError: they cannot be listed, or the cluster has no such resource.
    """
    uids = [item.get("metadata", {}).get("uid") for item in _items(home, _JOB, None, "", _METADATA_ONLY)]
    if not all(isinstance(uid, str) and uid for uid in uids):
        raise ClusterError(f"{home.url} lists a job without a uid; nothing is known to be orphaned")
    return frozenset(uids)


def orphans(found: Iterable[Remain], home: str, jobs: AbstractSet[str]) -> tuple[Remain, ...]:
    """Those of one home whose job is not in ``jobs``, the uids of all of that home's jobs.

    The objects must have been listed before the jobs: otherwise a job made in between would be missing.
    """
    return tuple(one for one in found if one.home == home and one.job_uid not in jobs)


def deleted(server: ApiServer, chosen: Sequence[Remain]) -> Iterator[Outcome]:
    """Delete objects in order, each only if it still has its uid."""
    for one in chosen:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": one.uid},
        }
        try:
            answer = server.delete(one.kind.path(one.namespace, one.name), options)
        except ClusterError as error:
            yield Outcome(one, str(error))
            continue
        # 404: gone already. 409: it is another object by now, which is not ours.
        fine = answer.status < HTTPStatus.MULTIPLE_CHOICES or answer.status in (
            HTTPStatus.NOT_FOUND,
            HTTPStatus.CONFLICT,
        )
        yield Outcome(one, "" if fine else f"{server.url} answered with HTTP {answer.status}")


def _items(
    server: ApiServer, kind: Kind, namespace: str | None, selector: str, accept: str
) -> Iterator[Mapping[str, Any]]:
    following = ""
    for _ in range(_MOST_PAGES):
        query = {"limit": _PAGE_OBJECTS, "labelSelector": selector, "continue": following}
        path = f"{kind.path(namespace)}?{urlencode({key: value for key, value in query.items() if value})}"
        answer = server.get(path, accept=accept)
        if answer.status == HTTPStatus.NOT_FOUND and kind is not _JOB:
            return  # the cluster does not serve this kind, so there are none
        if answer.status != HTTPStatus.OK:
            why = answer.said.get("message", f"HTTP {answer.status}")
            raise ClusterError(f"{server.url} does not list {kind.plural}: {why}")
        page = answer.said
        items = page.get("items", False)
        items = [] if items is None else items  # so servers write an empty list of metadata
        if not isinstance(items, list):
            raise ClusterError(f"{server.url} answers a list of {kind.plural} with something else")
        yield from (item for item in items if isinstance(item, Mapping))
        metadata = page.get("metadata")
        following = str(metadata.get("continue") or "") if isinstance(metadata, Mapping) else ""
        if not following:
            return
    raise ClusterError(f"{server.url} lists {kind.plural} without end")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
