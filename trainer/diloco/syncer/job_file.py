"""Watches the manifest of a running syncer: in a cluster, a pool is scaled by changing this file.

Only a pool's numbers of learners can change while a job runs; every other field that the syncer uses was fixed when it
began. Fields that it does not use (images, resources, deadlines) may change freely.
"""

import logging
from pathlib import Path
from typing import Any

from diloco.core.engine.events import LearnersPlanned
from diloco.core.engine.options import pool_minimums
from diloco.runtime.files import FileSignature, signature_of
from diloco.spec import DiLoCoJob, SpecError, load_job

_log = logging.getLogger(__name__)


class JobFile:
    """One manifest on disk, polled for changes. For one thread at a time."""

    def __init__(self, path: Path, job: DiLoCoJob) -> None:
        """``job`` is what the file contained when the process began."""
        self._path = path
        self._job = job
        self._signature: FileSignature | None = None
        """Signature of the file as last read. None at first: it may have changed since ``job`` was read."""

    def poll(self) -> LearnersPlanned | None:
        """The learners that are planned now, if that has changed. Never raises: problems are logged.

        A poll costs one ``stat``, which follows the links that a mounted ConfigMap is updated through.
        """
        signature = signature_of(self._path)
        if signature is None or signature == self._signature:
            return None
        self._signature = signature
        try:
            job = load_job(self._path)
        except SpecError as error:
            _log.warning("%s; the job continues unchanged", str(error).splitlines()[0])
            return None
        if changed := _difference(_fixed(self._job), _fixed(job), ""):
            _log.warning(
                "%s has changed in %s; only learners, minimumLearners and excludedIndices of regions[].pools[] can "
                "change while the job runs, so it continues unchanged",
                self._path,
                changed,
            )
            return None
        before, self._job = _planned(self._job), job
        now = _planned(job)
        return None if now == before else now


def _planned(job: DiLoCoJob) -> LearnersPlanned:
    return LearnersPlanned(job.spec.learner_ids, pool_minimums(job.spec))


def _fixed(job: DiLoCoJob) -> dict[str, Any]:
    spec = job.spec
    plain = spec.model_dump(mode="json", by_alias=True)
    kept = {name: plain[name] for name in ("model", "data", "training", "sync", "failurePolicy")}
    # The operator's alone.
    kept["failurePolicy"] = {name: value for name, value in kept["failurePolicy"].items() if name != "lostPods"}
    syncer = {name: plain["syncer"][name] for name in ("checkpointEverySeconds", "maxCheckpoints", "tape")}
    regions = [
        {"name": region.name, "pools": [{"name": pool.name, "batchSize": pool.batch_size} for pool in region.pools]}
        for region in spec.regions
    ]
    return {"metadata": {"name": job.metadata.name}, "spec": {**kept, "syncer": syncer, "regions": regions}}


def _difference(before: Any, after: Any, path: str) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        places = [(before.get(key), after.get(key), f"{path}.{key}".lstrip(".")) for key in {**before, **after}]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        places = [(one, other, f"{path}[{i}]") for i, (one, other) in enumerate(zip(before, after, strict=True))]
    else:
        return "" if before == after else path
    return next((found for place in places if (found := _difference(*place))), "")
