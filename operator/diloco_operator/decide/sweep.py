"""Which objects in another cluster are left from jobs that are gone. Pure.

A job's finalizer has them deleted with the job, unless their cluster did not answer in time, or the finalizer was
removed by hand. So each cluster is swept when it comes back, and now and then.

An object is deleted only if its labels say that it is of this home, and if the whole list of jobs, made after the
object was seen, has none with its uid. Every object of another home is left alone.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from diloco_operator import labels
from diloco_operator.decide.observed import Object
from diloco_operator.objects import labels_of, metadata_of

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object of a job that is gone."""

    kind: str
    name: str
    uid: str
    """Its own uid: the precondition of its deletion."""
    job: str
    """``namespace/name`` at home."""


def orphans(
    objects: Iterable[tuple[str, Object]], home_id: str, job_uids: Collection[str], namespaces: Collection[str]
) -> tuple[Orphan, ...]:
    """The objects of one cluster that may be deleted.

    Args:
        objects: Objects in that cluster with their kinds, seen before the jobs were listed.
        home_id: The id of this home. Empty: it is not known, and nothing is left over.
        job_uids: The uids of all jobs in ``namespaces``, including those that are being deleted.
        namespaces: Those whose jobs this operator watches; empty: all. Jobs of others are another operator's.
    """
    found = []
    for kind, item in objects if home_id else ():
        metadata, own = metadata_of(item), labels_of(item)
        namespace, job, uid = (own.get(name) for name in (labels.HOME_NAMESPACE, labels.JOB, labels.JOB_UID))
        ours = own.get(labels.HOME) == home_id and own.get(labels.MANAGED_BY) == labels.FIELD_MANAGER
        # Others may have written the labels: what is not a name is not of a job.
        named = all(isinstance(one, str) and _NAME.fullmatch(one) for one in (namespace, job))
        if not (ours and named and uid) or uid in job_uids or (namespaces and namespace not in namespaces):
            continue
        if metadata.get("uid") and not metadata.get("deletionTimestamp"):
            found.append(Orphan(kind, str(metadata.get("name")), str(metadata["uid"]), f"{namespace}/{job}"))
    return tuple(found)
