"""What of a manifest may change between a run and its continuation. Pure."""

from typing import Any

from diloco.spec import DiLoCoJob


def frozen_differences(before: DiLoCoJob, after: DiLoCoJob) -> tuple[str, ...]:
    """Paths in the manifest that differ and must not: the state on disk would not fit the changed job.

    Budget, batch, the inner optimizer's rates, outer optimizer, quorum, grace, compression both ways, evaluation and
    policies may change.
    """
    old, new = _frozen(before), _frozen(after)
    return tuple(path for path in old if old[path] != new[path])


def _frozen(job: DiLoCoJob) -> dict[str, Any]:
    spec = job.spec
    muon = spec.training.optimizer.muon_options
    return {
        "metadata.name": job.metadata.name,
        "spec.model": spec.model,
        "spec.data": spec.data,
        "spec.training.sequenceLength": spec.training.sequence_length,
        "spec.training.seed": spec.training.seed,
        "spec.training.optimizer.kind": spec.training.optimizer.kind,
        "spec.training.optimizer.muon.exclude": () if muon is None else muon.exclude,
        "spec.sync.fragments": spec.sync.fragments,
        "spec.regions (names, pools, learners)": spec.learner_ids,
    }
