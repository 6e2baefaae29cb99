"""A tape is data: replaying a stranger's imports nothing, and takes no memory for a model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diloco.core.engine import Engine, EngineOptions
from diloco.core.events import Event, LearnerJoined, LearnerReady, StepReported
from diloco.core.fragments import FragmentTable, Layout, TensorSpec, partition
from diloco.core.options import CURRENT_RULES
from diloco.model import layout_of
from diloco.spec import DiLoCoJob
from diloco.syncer.replay import ReplayError, replay
from diloco.tape.limits import TapeLimits
from diloco.tape.reader import TapeHeader
from diloco.tape.writer import TapeWriter
from tests.support.entrypoints import tiny_model

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LEARNER = "here/cpu/0"
TINY = layout_of(tiny_model(), 1)
MOST_BYTES = 1 << 30


def job_of(entrypoint: str, fragments: int = 1, **arguments: Any) -> DiLoCoJob:
    return DiLoCoJob.model_validate(
        {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "strange"},
            "spec": {
                "model": {"entrypoint": entrypoint, "arguments": arguments},
                "data": {"text": {}},
                "training": {"tokens": 10_000},
                "sync": {"fragments": fragments, "interval": fragments},
                "regions": [{"name": "here", "pools": [{"name": "cpu"}]}],
            },
        }
    )


def write_tape(folder: Path, job: DiLoCoJob, layout: Layout, table: tuple[FragmentTable, ...]) -> None:
    engine = Engine(EngineOptions.from_job(job, layout), 1, None)
    plain = job.model_dump(mode="json", by_alias=True)
    header = TapeHeader(plain, layout.digest, 1, "", False, {}, 0.0, int(CURRENT_RULES), table)  # noqa: FBT003
    tape = TapeWriter(folder / "tape", header, TapeLimits())
    events: list[Event] = [LearnerJoined(LEARNER, "process", (), 0, 0), LearnerReady(LEARNER, 1)]
    events += [StepReported(LEARNER, 1, n, n, 1.0, 0.0, 1.0, n) for n in range(1, 5)]
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


def test_an_earlier_tape_of_an_entrypoint_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write_tape(tmp_path, job_of("os:system", command=f"touch {trace}"), TINY, ())
    with pytest.raises(ReplayError, match=r"without the sizes of its model, .* os:system; use --trust") as raised:
        replay(tmp_path)
    assert "\n" not in str(raised.value)
    assert not trace.exists()
    with pytest.raises(ReplayError, match="its model cannot be built here"):
        replay(tmp_path, trust=True)
    assert trace.exists()


def test_a_trusted_earlier_tape_replays(tmp_path: Path) -> None:
    write_tape(tmp_path, job_of("tests.support.entrypoints:tiny_model"), TINY, ())
    report = replay(tmp_path, trust=True)
    assert report.ok, report.problems


def table_of(*tensors: tuple[str, tuple[int, ...], bool]) -> tuple[FragmentTable, ...]:
    return (tensors,)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of(("a", (2**62, 2**62), False)), "its model is not valid"),
        (table_of(("a", (0,), False)), "its model is not valid"),
        (table_of(("a", (1,) * 100, False)), "its model is not valid"),
        (table_of(("a", (2**30, 2**30), False)), "its model is not valid"),
        (table_of(("a", (1,), False), ("a", (1,), False)), "two tensors of one name"),
        (((),), "a fragment without tensors"),
        (TINY.table * 2, "two tensors of one name"),
        ((*TINY.table, *table_of(("a", (1,), False))), "its model has 2 fragments, its job 1"),
        (table_of(("a", (1,), False)), "another version of it"),
    ],
)
def test_sizes_that_are_no_model_are_refused(tmp_path: Path, table: tuple[FragmentTable, ...], message: str) -> None:
    write_tape(tmp_path, job_of("os:system"), TINY, table)
    (problem,) = replay(tmp_path).problems
    assert message in str(problem)


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
