"""How many learners a drain may take at once. Must not know how many there are."""

from typing import Final

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common
from diloco_operator.manifests.inputs import Manifest

MOST_AWAY: Final = "10%"
"""Of a job's learners; rounded up, so one may always go (ours)."""


def budget(job: DiLoCoJob) -> Manifest:
    """The PodDisruptionBudget of all learners. One that is not healthy anyway holds up no drain."""
    name = job.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": common.metadata(job, names.learners(name), labels.of_job(name, labels.LEARNER)),
        "spec": {
            "maxUnavailable": MOST_AWAY,
            "selector": {"matchLabels": labels.learners_selector(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
