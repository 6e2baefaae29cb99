"""Processor time and fresh pages of synchronization: of a whole job a step, and of one exchange by its parts.

The job is two learners of nano with a syncer, real processes on loopback, one exchange in each step. Beside it two
processes make the same steps without any synchronization, in turns of some seconds: the others are paused meanwhile.
Useful tokens are the job's speed times the share that is merged. Parts are the product's own functions and calls, each
in turn, for a fragment of nano and for one of 64 MiB; what the far side of a transfer spends is its process's.
Processor time is user and system time; a page fault is memory that the kernel has to give, which is counted and so the
same on a busy machine. Of each part the median of the rounds counts in time, and the mean in page faults, without the
first rounds. Processes have one torch thread.

    python benchmarks/cost.py --json cost.json
"""

import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from diloco.local.status_poll import fetch_status
from support.cost.exchange import BYTES_64_MIB, CODECS, LEARNERS, Exchange, job, trainer_of
from support.job import alone, await_steps, python_path, running
from support.links.peers import Far
from support.links.ways import Wire, started
from support.report import Ratio, Ratios, command, write_report

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_WARM_UP_ROUNDS: Final = 4
_TURN_SECONDS: Final = 4.0


class Spent(NamedTuple):
    """What a process has spent so far."""

    seconds: float
    faults: int

    @classmethod
    def by(cls, pid: int) -> "Spent":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(time.clock_gettime(~pid << 3 | 2), int(fields[7]))  # the process's clock (clock_getcpuclockid)


def exchange(preset: str, codecs: str, rounds: int) -> list[dict[str, Any]]:
    """What each part takes."""
    far_bytes = BYTES_64_MIB + (1 << 20)
    with started(Far(plain=False, payload_bytes=far_bytes, tls=None)) as (port, _):
        (far,) = multiprocessing.active_children()
        assert far.pid is not None
        pids = {"": os.getpid(), " (other side)": far.pid}
        spent: dict[str, list[Spent]] = defaultdict(list)
        with closing(Wire(f"127.0.0.1:{port}", None)) as wire:
            one = Exchange(preset, codecs, wire)
            for turn in range(rounds + _WARM_UP_ROUNDS):
                one.train()
                for part in Exchange.PARTS:
                    before = {side: Spent.by(pid) for side, pid in pids.items()}
                    getattr(one, part)()
                    for side, pid in pids.items():
                        now = Spent.by(pid)
                        if turn >= _WARM_UP_ROUNDS:
                            used = Spent(now.seconds - before[side].seconds, now.faults - before[side].faults)
                            spent[part + side].append(used)
    pages = one.fragment_bytes / _PAGE_BYTES
    return [
        {
            "fragment": preset,
            "codecs": codecs,
            "part": part,
            "processor_ms": 1e3 * statistics.median(used.seconds for used in each),
            "faults_a_page": statistics.mean(used.faults for used in each) / pages,
        }
        for part, each in spent.items()
        if not part.endswith(" side)") or part.startswith("pu")
    ]


def train_alone(learner: str, steps: Any) -> None:
    """Steps without synchronization, until the process is ended."""
    trainer, _ = trainer_of("nano", next(iter(CODECS)), learner)
    while True:
        trainer.step(0.0)
        steps.value += 1


def whole(codecs: str, turns: int) -> dict[str, Any]:
    """Processor milliseconds of a job, for each learner's step, beside the same steps without synchronization."""
    os.environ["PYTHONPATH"] = python_path()
    spawn = multiprocessing.get_context("spawn")
    counts = [spawn.Value("q") for _ in LEARNERS]
    plain = [spawn.Process(target=train_alone, args=one) for one in zip(LEARNERS, counts, strict=True)]
    with ExitStack() as end:
        output = Path(end.enter_context(tempfile.TemporaryDirectory())) / "out"
        run = end.enter_context(running(output.parent, job("nano", codecs)))
        await_steps(run, output)
        for process in plain:
            process.start()
            end.callback(process.kill)
        while min(count.value for count in counts) < _WARM_UP_ROUNDS:
            time.sleep(1.0)
        of_job = dict(_processes(run.pid))
        alone = {process.pid: "unsynchronized" for process in plain if process.pid is not None}

        def read() -> dict[str, float]:
            address = json.loads((output / "syncer" / "endpoint.json").read_text())["http"]
            status = fetch_status(address)
            found = {name: sum(getattr(one, name) for one in status.learners) for name in ("steps", "tokens")}
            found |= {"merges": status.syncer_step, "merged_tokens": status.merged_tokens}
            found["steps alone"] = sum(count.value for count in counts)
            for pid, kind in (of_job | alone).items():
                found[kind] = found.get(kind, 0.0) + Spent.by(pid).seconds
            return found

        _signal(alone, signal.SIGSTOP)
        first = read()
        for _ in range(turns):
            time.sleep(_TURN_SECONDS)
            _signal(of_job, signal.SIGSTOP)
            _signal(alone, signal.SIGCONT)
            time.sleep(_TURN_SECONDS)
            _signal(alone, signal.SIGSTOP)
            _signal(of_job, signal.SIGCONT)
        made = {name: value - first[name] for name, value in read().items()}
        end.callback(_signal, alone, signal.SIGCONT)
    return {
        "codecs": codecs,
        "steps": made["steps"],
        "merges": made["merges"],
        "speed": made["steps"] / made["steps alone"],
        "merged_share": made["merged_tokens"] / made["tokens"],
        "learner_ms_a_step": 1e3 * made["learner"] / made["steps"],
        "syncer_ms_a_step": 1e3 * made["syncer"] / made["steps"],
        "unsynchronized_ms_a_step": 1e3 * made["unsynchronized"] / made["steps alone"],
    }


def _signal(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, what)


def _processes(run: int) -> Iterator[tuple[int, str]]:
    """A run's learners and its syncer."""
    for pid in _children(run):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for kind in ("learner", "syncer"):
            if kind.encode() in words:
                yield pid, kind


def _children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from _children(child)


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="exchanges of each kind (8)")
    parser.add_argument("--turns", type=int, default=12, help="of a job, and of as much training without one (12)")
    arguments = parser.parse_args()
    jobs = [whole(codecs, arguments.turns) for codecs in CODECS]
    rows = [
        row
        for preset in ("nano", "64 MiB")
        for codecs in CODECS
        for row in alone(exchange, preset, codecs, arguments.rounds)
    ]
    plain = "a step without synchronization, in the same run"
    ratios: Ratios = {
        f"{one['codecs']}, job": Ratio(
            (one["learner_ms_a_step"] + one["syncer_ms_a_step"]) / one["unsynchronized_ms_a_step"],
            plain,
            less_is_better=True,
        )
        for one in jobs
    }
    for one in jobs:
        ratios[f"{one['codecs']}, useful tokens"] = Ratio(one["speed"] * one["merged_share"], plain)
    for preset, codecs in product(("nano", "64 MiB"), CODECS):
        faults = sum(row["faults_a_page"] for row in rows if (row["fragment"], row["codecs"]) == (preset, codecs))
        name = f"{codecs}, fresh pages, {preset}"
        ratios[name] = Ratio(faults, "pages of the fragment in f32", less_is_better=True)
    write_report(arguments.json, "cost", ratios, {"rounds": arguments.rounds, "jobs": jobs, "parts": rows})


if __name__ == "__main__":
    main()
