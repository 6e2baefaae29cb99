"""Sweeps one cluster once: deletes what jobs that are gone have left there.

`decide.sweep` says what that is. The objects are taken first, then the uids of all jobs; and each job whose objects
look left over is asked for by its name before anything is deleted.
"""

import logging
import random
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from diloco_operator.cluster.api import Api
from diloco_operator.cluster.errors import REFUSED, ApiError, ConflictError, NotFoundError, UnavailableError
from diloco_operator.cluster.kinds import JOB, REMOTE_CHILDREN, Object
from diloco_operator.decide.sweep import Orphan, SweptJob, orphans, suspects

_log = logging.getLogger(__name__)
MOST_JOBS_ASKED: Final = 50
"""Jobs that are asked for in one sweep. Whoever may write to the other cluster can make up as many as there are names,
so these are chosen by chance; the next sweep, soon after, asks for others."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KINDS: Final = {kind.name: kind for kind in REMOTE_CHILDREN}


class Outcome(IntEnum):
    """How a sweep ended; of several, the greatest counts."""

    DONE = 0
    MORE = 1
    """Other jobs are still to be asked for."""
    FAILED = 2
    """A request failed that may succeed later."""


@dataclass(frozen=True, slots=True)
class SweepHome:
    """What is asked of home."""

    api: Api
    job_uids: Callable[[], Collection[str] | None]
    """The uids of all jobs in ``namespaces``, including those being deleted; None if the list is incomplete."""
    namespaces: tuple[str, ...]
    """Those whose jobs this operator watches; empty: all."""
    swept: Callable[[str], None]
    """Called for each deleted object, with the name of its cluster."""


@dataclass(frozen=True, slots=True)
class SweptPlace:
    """The cluster that is swept."""

    name: str
    """For the log and the metric: home's namespace and the Secret."""
    api: Api
    namespace: str
    """Where the objects are."""
    failed: Callable[[ApiError], None]
    """Takes in that a request failed."""


async def sweep(place: SweptPlace, objects: Iterable[Object], home_id: str, home: SweepHome) -> Outcome:
    """Delete those of these objects whose jobs are gone.

    Args:
        place: The cluster.
        objects: Its objects, as they are or were before now.
        home_id: This home's.
        home: What is asked of it.
    """
    found = [one for one in objects if (one.get("metadata") or {}).get("namespace") == place.namespace]
    suspected = [one for one in suspects(found, home_id, home.job_uids(), home.namespaces) if _is_named(one)]
    jobs = sorted({one.job for one in suspected})
    asked = random.sample(jobs, MOST_JOBS_ASKED) if len(jobs) > MOST_JOBS_ASKED else jobs
    answers, outcome = await _ask(home.api, asked)
    deleted = await _delete(place, orphans(suspected, answers), home)
    return max(outcome, deleted, Outcome.DONE if len(asked) == len(jobs) else Outcome.MORE)


def _is_named(one: Orphan) -> bool:
    return one.kind in _KINDS and all(map(_NAME.fullmatch, (one.name, one.job.namespace, one.job.name)))


async def _ask(api: Api, jobs: Iterable[SweptJob]) -> tuple[dict[SweptJob, str | None], Outcome]:
    answers: dict[SweptJob, str | None] = {}
    outcome = Outcome.DONE
    for job in jobs:
        try:
            answers[job] = str((await api.get(JOB, *job))["metadata"]["uid"])
        except NotFoundError as error:
            if error.about == job.name:
                answers[job] = None
                continue
            # The server has no jobs at all, or not yet.
            outcome = Outcome.FAILED
            _log.warning("%s; what other clusters hold of it is left alone", error)
        except ApiError as error:
            outcome = Outcome.FAILED
            _log.warning("%s; what other clusters hold of it is left alone", error)
            if not isinstance(error, REFUSED):
                break
    return answers, outcome


async def _delete(place: SweptPlace, gone: Iterable[Orphan], home: SweepHome) -> Outcome:
    outcome, told = Outcome.DONE, set[str]()
    for one in gone:
        kind = _KINDS[one.kind]
        try:
            await place.api.delete(kind, place.namespace, one.name, {"uid": one.uid})
        except (NotFoundError, ConflictError):
            continue  # deleted already, or replaced by another
        except ApiError as error:
            outcome = Outcome.FAILED
            place.failed(error)
            if kind.name not in told:
                _log.warning("cluster %s: %s", place.name, error)
            told.add(kind.name)
            if isinstance(error, REFUSED) or (isinstance(error, UnavailableError) and error.code != 0):
                continue
            break  # the next one would fail as well
        home.swept(place.name)
        _log.info("cluster %s: %s %s deleted, which was left by job %s/%s", place.name, one.kind, one.name, *one.job)
    return outcome
