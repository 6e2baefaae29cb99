"""The job that stands for a published one: only its learners and its synchronization matter."""

from collections.abc import Mapping
from typing import Any, Final

from diloco.simulate.scenario import Link
from diloco.spec import DiLoCoJob

IDEAL: Final = Link(latency_seconds=0.0, bytes_per_second=1e15)


def job_of(learners: int, sync: Mapping[str, Any]) -> DiLoCoJob:
    """A job without an end, with each learner in a region of its own. Its model is never built."""
    spec = {
        "model": {"builtin": {"preset": "pico"}},
        "data": {"text": {}},
        "training": {"tokens": 10**15},
        "sync": dict(sync),
        "regions": [{"name": f"r{number}", "pools": [{"name": "all"}]} for number in range(learners)],
    }
    manifest = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "metadata": {"name": "published"}}
    return DiLoCoJob.model_validate(manifest | {"spec": spec})
