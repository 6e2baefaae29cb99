"""Watches the manifest of a running syncer: in a cluster, pools are scaled, added and removed by changing this file.

Every other field that the syncer uses was fixed when the job began. Fields that it does not use (images, resources,
deadlines) may change freely.
"""

import logging
from collections.abc import Collection
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
        self.job = job
        """The manifest as last taken over."""
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
        if changed := _difference(*_fixed(self.job, job), ""):
            _log.warning(
                "%s has changed in %s; only regions and pools, and their learners, minimumLearners and "
                "excludedIndices, can change while the job runs, so it continues unchanged",
                self._path,
                changed,
            )
            return None
        before, self.job = _planned(self.job), job
        now = _planned(job)
        return None if now == before else now


def _planned(job: DiLoCoJob) -> LearnersPlanned:
    return LearnersPlanned(job.spec.learner_ids, tuple(job.spec.pools), pool_minimums(job.spec))


def _fixed(before: DiLoCoJob, after: DiLoCoJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """What cannot change, of both; pools that only one of them has are new or gone."""
    kept = before.spec.pools.keys() & after.spec.pools.keys()
    return _fixed_of(before, kept), _fixed_of(after, kept)


def _fixed_of(job: DiLoCoJob, pools: Collection[str]) -> dict[str, Any]:
    spec = job.spec
    plain = spec.model_dump(mode="json", by_alias=True)
    kept = {name: plain[name] for name in ("model", "data", "training", "sync", "failurePolicy")}
    # The operator's alone.
    kept["failurePolicy"] = {name: value for name, value in kept["failurePolicy"].items() if name != "lostPods"}
    syncer = {name: plain["syncer"][name] for name in ("checkpointEverySeconds", "maxCheckpoints", "tape")}
    regions = {f"[{place}]": {"batchSize": spec.pools[place].batch_size} for place in sorted(pools)}
    return {"metadata": {"name": job.metadata.name}, "spec": {**kept, "syncer": syncer, "regions": regions}}


def _difference(before: Any, after: Any, path: str) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        places = [(before.get(key), after.get(key), f"{path}.{key}".lstrip(".")) for key in {**before, **after}]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        places = [(one, other, f"{path}[{i}]") for i, (one, other) in enumerate(zip(before, after, strict=True))]
    else:
        return "" if before == after else path
    return next((found for place in places if (found := _difference(*place))), "")
