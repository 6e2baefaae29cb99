"""A tape is data: replaying a stranger's imports nothing, and takes no memory for a model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import Event, LearnerJoined, LearnerReady, StepReported
from diloco.core.fragments import FragmentTable, Layout, TensorSpec, partition
from diloco.model.fragments import layout_of
from diloco.spec import DiLoCoJob
from diloco.syncer.replay import replay
from diloco.tape.keeper import TapeLimits
from diloco.tape.writer import TapeWriter
from tests.support.entrypoints import tiny_model
from tests.support.small_job import named_job, small_job
from tests.support.tape_headers import tape_header

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LEARNER = "here/cpu/0"
TINY = layout_of(tiny_model(), 1)
MOST_BYTES = 1 << 30


def job_of(entrypoint: str, fragments: int = 1, **arguments: Any) -> DiLoCoJob:
    model = {"entrypoint": entrypoint, "arguments": arguments}
    return named_job(
        "strange", small_job(model=model, sync={"fragments": fragments, "interval": fragments}, learners=1)
    )


def write_tape(folder: Path, job: DiLoCoJob, layout: Layout, table: tuple[FragmentTable, ...]) -> None:
    engine = Engine(EngineOptions.from_job(job, layout), 1, None)
    header = tape_header(job=job.model_dump(mode="json", by_alias=True), layout=layout.digest, tensors=table)
    tape = TapeWriter(folder / "tape", header, TapeLimits())
    events: list[Event] = [LearnerJoined(LEARNER, "process", (), 0, 0), LearnerReady(LEARNER, 1)]
    events += [StepReported(LEARNER, 1, n, n, 1.0, 1.0, n) for n in range(1, 5)]
    for now, event in enumerate(events):
        tape.append(float(now), event, engine.step(event, float(now)))
    tape.close()


def test_what_a_tape_names_is_not_imported(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write_tape(tmp_path, job_of("os:system", command=f"touch {trace}"), TINY, TINY.table)
    report = replay(tmp_path)
    assert report.ok, report.problems
    assert report.epochs[0].events == 6
    assert not trace.exists()


def table_of(*tensors: tuple[str, tuple[int, ...], bool]) -> tuple[FragmentTable, ...]:
    return (tensors,)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((), "its model is not valid"),
        (table_of(("a", (2**62, 2**62), False)), "its model is not valid"),
        (TINY.table * 2, "two tensors of one name"),
        ((*TINY.table, *table_of(("a", (1,), False))), "its model has 2 fragments, its job 1"),
        (table_of(("a", (1,), False)), "another version of it"),
    ],
)
def test_sizes_that_are_no_model_are_refused(tmp_path: Path, table: tuple[FragmentTable, ...], message: str) -> None:
    write_tape(tmp_path, job_of("os:system"), TINY, table)
    (problem,) = replay(tmp_path).problems
    assert message in str(problem)


def test_the_tape_of_a_model_with_a_split_embedding_replays(tmp_path: Path) -> None:
    layout = partition([TensorSpec("words", (500, 1000), embedding=True), TensorSpec("a", (9,), embedding=False)], 2)
    assert len(layout.table) < sum(len(part) for part in layout.table)
    write_tape(tmp_path, job_of("nobody.has:this", fragments=2), layout, layout.table)
    report = replay(tmp_path)
    assert report.ok, report.problems


@pytest.mark.slow
def test_a_tape_of_twelve_billion_parameters_replays_in_little_memory(tmp_path: Path) -> None:
    layout = partition([TensorSpec(f"part.{index}", (500, 1_000_000), embedding=False) for index in range(24)], 24)
    assert layout.numel == 12_000_000_000
    write_tape(tmp_path, job_of("nobody.has:this", fragments=24), layout, layout.table)
    told = subprocess.run(
        [sys.executable, "-c", _REPLAY_AND_TELL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) < MOST_BYTES


_REPLAY_AND_TELL = """
import re, sys
from pathlib import Path
from diloco.syncer.replay import replay
report = replay(Path(sys.argv[1]))
assert report.ok, report.problems
# The peak of this program alone: ru_maxrss begins with that of the process which started it.
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
"""
