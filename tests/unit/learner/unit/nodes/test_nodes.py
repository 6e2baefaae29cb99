"""Which learner and which of its nodes a pod is, and what its process is told."""

from pathlib import Path

import pytest

from diloco.learner.options import LearnerOptionError, LearnerOptions, node_of_pod
from tests.support.small_job import named_job, small_job

UNITS = {"name": "b", "learners": 2, "nodesPerLearner": 3, "processesPerNode": 2, "batchSize": 12}
JOB = named_job("small", small_job(regions=[{"name": "a", "pools": [UNITS]}]))


@pytest.mark.parametrize(
    ("pod", "learner", "node", "unit"),
    [
        ("a/b/0", "a/b/0", 0, "set-0.learners:29401"),
        ("a/b/2", "a/b/0", 2, "set-0.learners:29401"),
        ("a/b/3", "a/b/1", 0, "set-3.learners:29401"),
        ("a/b/5", "a/b/1", 2, "set-3.learners:29401"),
    ],
)
def test_consecutive_pods_are_the_nodes_of_a_learner(pod: str, learner: str, node: int, unit: str) -> None:
    assert node_of_pod(JOB, pod, "set-{index}.learners:29401") == (learner, node, unit)
    options = LearnerOptions(JOB, learner, "syncer:29400", Path("state"), unit=unit, node=node)
    assert (options.nodes, options.processes_here, options.ranks) == (3, 2, 6)


def test_without_other_nodes_a_learner_is_the_processes_of_one() -> None:
    options = LearnerOptions(JOB, "a/b/0", "syncer:29400", Path("state"))
    assert (options.nodes, options.processes_here, options.ranks) == (1, 2, 2)


@pytest.mark.parametrize("pod", ["a/c/0", "a/b/x", "a/b/-1", "b/0", "", "a/b/"])
def test_what_is_no_pod_of_the_job_is_refused(pod: str) -> None:
    with pytest.raises(LearnerOptionError, match=r"^--learner: .* is no pod of job small; use REGION/POOL/PODINDEX$"):
        node_of_pod(JOB, pod, "x:1")
