from pathlib import Path
from typing import Any

import pytest

from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.simulate import Cut, Kill, Link, Profile, Scenario, simulate
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course
from diloco.spec import DiLoCoJob
from tests.support.small_job import named_job, small_job, write_text

FIRST, SECOND = "here/cpu/0", "here/cpu/1"
SYNC = {"fragments": 6, "interval": 6}


def job_of(path: Path, **sync: Any) -> DiLoCoJob:
    training = {"tokens": 40 * 2 * 64, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    spec = small_job(write_text(path), 2, training=training, sync=SYNC | sync)
    return named_job("counted", spec)


@pytest.mark.parametrize(
    ("scenario", "sync"),
    [
        (Scenario(), {}),
        (Scenario({SECOND: Profile(step_seconds=1.3, link=Link(0.08, 3e4))}), {"compression": "Int4"}),
        (
            Scenario({SECOND: Profile(step_seconds=1.3, link=Link(0.08, 1e4))}),
            {"compression": "Int4", "downlink": "Int8"},
        ),
        (
            Scenario(faults=(Kill(FIRST, 7.3, 2.0), Cut(SECOND, 11.0, 3.0))),
            {"compression": "TopK", "density": 0.05, "downlink": "TopK"},
        ),
        (
            Scenario(default=Profile(link=Link(0.02, 1e5)), faults=(Kill(FIRST, 7.3, 2.0), Cut(SECOND, 11.0, 3.0))),
            {"compression": "Int8", "downlink": "BF16"},
        ),
    ],
    ids=["calm", "slow and far", "slow and far, encoded back", "faults", "faults, encoded back"],
)
def test_a_counted_run_takes_the_course_of_a_real_one(tmp_path: Path, scenario: Scenario, sync: dict[str, Any]) -> None:
    job = job_of(tmp_path, **sync)
    trained = simulate(job, scenario)
    counted = simulate_course(job, scenario, layout_of(build_model(job.spec), 6))
    assert counted.counts == trained.counts
    assert counted.virtual_seconds == trained.virtual_seconds
    for one, other in zip(counted.view.learners, trained.view.learners, strict=True):
        assert (one.steps, one.tokens, one.merged_tokens) == (other.steps, other.tokens, other.merged_tokens)
        assert (one.restarts, one.time_seconds, one.pushed_bytes) == (
            other.restarts,
            other.time_seconds,
            other.pushed_bytes,
        )


def test_a_model_that_no_machine_here_could_hold_can_be_counted(tmp_path: Path) -> None:
    layout = layout_of_sizes([10**9] * 6)
    assert layout.shares == (1 / 6,) * 6
    course = simulate_course(job_of(tmp_path), Scenario(default=Profile(link=Link(0.01, 1e11))), layout)
    assert course.view.complete
    assert course.view.learners[0].pushed_bytes >= 2 * 10**9
