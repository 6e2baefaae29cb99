"""Which objects in another cluster are left from jobs that are gone. Pure.

A job's finalizer has them deleted with the job, unless their cluster did not answer in time, or the finalizer was
removed by hand. So each cluster is swept when it comes back, and now and then.

An object is deleted only if its labels say that it is of this home, if the whole list of jobs has none with its uid,
and if afterwards the job was asked for by its name and did not exist or had another uid. An object of a home whose
jobs are not all known is left alone, and so is every object of another home.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator import labels
from diloco_operator.decide.observed import Object


class SweptJob(NamedTuple):
    """A job by its name at home."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object of a job that is gone."""

    kind: str
    name: str
    uid: str
    """Its own uid: the precondition of its deletion."""
    job: SweptJob
    job_uid: str


def suspects(
    objects: Iterable[Object], home_id: str, job_uids: Collection[str] | None, namespaces: Collection[str]
) -> tuple[Orphan, ...]:
    """The objects of one cluster whose jobs have to be asked for by name, since no known job has their uid.

    Args:
        objects: Objects in that cluster, listed before the jobs were.
        home_id: The id of this home. Empty: it is not known, and nothing is suspect.
        job_uids: The uids of all jobs in ``namespaces``, those that are being deleted among them. None: the list is not
            whole yet.
        namespaces: Those whose jobs this operator watches; empty: all. Jobs of others are another operator's.
    """
    if not home_id or job_uids is None:
        return ()
    found = (_orphan(one, home_id) for one in objects)
    return tuple(
        one
        for one in found
        if one is not None and one.job_uid not in job_uids and (not namespaces or one.job.namespace in namespaces)
    )


def orphans(suspected: Iterable[Orphan], answers: Mapping[SweptJob, str | None]) -> tuple[Orphan, ...]:
    """Those that may be deleted.

    Args:
        suspected: From `suspects`.
        answers: The uid of each job as the API server at home says after that; None: it has no such job. A job that is
            missing here could not be asked for, and its objects are left alone.
    """
    return tuple(one for one in suspected if one.job in answers and answers[one.job] != one.job_uid)


def _orphan(item: Object, home_id: str) -> Orphan | None:
    metadata = _mapping(item.get("metadata"))
    own = _mapping(metadata.get("labels"))
    needed = (own.get(labels.JOB), own.get(labels.JOB_UID), own.get(labels.HOME_NAMESPACE))
    if own.get(labels.HOME) != home_id or own.get(labels.MANAGED_BY) != labels.FIELD_MANAGER or not all(needed):
        return None
    if metadata.get("deletionTimestamp") or not metadata.get("uid"):
        return None
    job, uid, namespace = map(str, needed)
    kind, name = str(item.get("kind")), str(metadata.get("name"))
    return Orphan(kind, name, str(metadata["uid"]), SweptJob(namespace, job), uid)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
