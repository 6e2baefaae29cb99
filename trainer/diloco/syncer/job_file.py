"""Watches the manifest of a running syncer: in a cluster, this file changes with pools and ``training.tokens``.

Every other field that the syncer uses was fixed when the job began. Fields that it does not use (images, resources,
deadlines) may change freely.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from diloco.core.engine.events import BudgetChanged, LearnersPlanned
from diloco.core.engine.options import evaluate_every_tokens, pool_minimums, pool_terms
from diloco.runtime.files import FileSignature, signature_of
from diloco.spec import DiLoCoJob, SpecError, load_job

_log = logging.getLogger(__name__)

Change = LearnersPlanned | BudgetChanged


class JobFile:
    """One manifest on disk, polled for changes. For one thread at a time."""

    def __init__(self, path: Path, job: DiLoCoJob) -> None:
        """``job`` is what the file contained when the process began."""
        self._path = path
        self.job = job
        """The manifest as last taken over."""
        self._signature: FileSignature | None = None
        """Signature of the file as last read. None at first: it may have changed since ``job`` was read."""

    def poll(self) -> list[Change]:
        """What has changed: the learners that are planned, the budget. Never raises: problems are logged.

        A poll costs one ``stat``, which follows the links that a mounted ConfigMap is updated through.
        """
        signature = signature_of(self._path)
        if signature is None or signature == self._signature:
            return []
        self._signature = signature
        try:
            job = load_job(self._path)
        except SpecError as error:
            _log.warning("%s; the job continues unchanged", str(error).splitlines()[0])
            return []
        if changed := _difference(*_fixed(self.job, job), ""):
            _log.warning(
                "%s has changed in %s; only training.tokens, regions and pools, and their learners, minimumLearners, "
                "excludedIndices and speed, can change while the job runs, so it continues unchanged",
                self._path,
                changed,
            )
            return []
        before, self.job = _watched(self.job), job
        return [now for now, then in zip(_watched(job), before, strict=True) if now != then]


def _watched(job: DiLoCoJob) -> tuple[Change, Change]:
    spec, training = job.spec, job.spec.training
    planned = LearnersPlanned(spec.learner_ids, tuple(spec.pools), pool_minimums(spec), pool_terms(spec))
    return planned, BudgetChanged(training.tokens, evaluate_every_tokens(training))


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
    kept["training"] = {name: value for name, value in kept["training"].items() if name != "tokens"}
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
