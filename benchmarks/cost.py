"""Processor time and fresh pages of synchronization: of a whole job a step, and of one exchange by its parts.

The job is two learners of nano with a syncer, real processes on loopback, one exchange in each step. Beside it, in
turns, are two replicas of torchft's DiLoCo and two processes without any synchronization (`support/cost/turns.py`).
Useful tokens are the job's speed times the share that is merged. Parts are the product's own functions and calls, each
in turn, for a fragment of nano and for one of 64 MiB; what the far side of a transfer spends is its process's.
Processor time is user and system time; a page fault is memory that the kernel has to give, which is counted and so the
same on a busy machine. Of each part the median of the rounds counts in time, and the mean in page faults, without the
first rounds. Processes have one torch thread.

    python benchmarks/cost.py --json cost.json
"""

import multiprocessing
import os
import statistics
from collections import defaultdict
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.cost.exchange import BYTES_64_MIB, CODECS, Exchange
from support.cost.turns import compared
from support.job import alone, cpu_seconds
from support.links.peers import Far
from support.links.ways import Wire, started
from support.report import Ratio, Ratios, command, write_report

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_WARM_UP_ROUNDS: Final = 4
_THIN: Final = "10Mbit/s,20ms"
JOBS: Final = (*((codecs, "") for codecs in CODECS), ("Int4 up, Int8 down", _THIN), ("TopK both ways", _THIN))
"""Codecs and link of each."""


class Spent(NamedTuple):
    """What a process has spent so far."""

    seconds: float
    faults: int

    @classmethod
    def by(cls, pid: int) -> "Spent":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(cpu_seconds(pid), int(fields[7]))


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


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="exchanges of each kind (8)")
    parser.add_argument("--turns", type=int, default=24, help="of a job and of each of the others, of two seconds (24)")
    arguments = parser.parse_args()
    jobs = [compared(*one, arguments.turns) for one in JOBS]
    rows = [
        row
        for preset in ("nano", "64 MiB")
        for codecs in CODECS
        for row in alone(exchange, preset, codecs, arguments.rounds)
    ]
    plain = "a step without synchronization, in the same run"
    ratios: Ratios = {
        one["job"]: Ratio(
            (one["learner_ms_a_step"] + one["syncer_ms_a_step"]) / one["unsynchronized_ms_a_step"],
            plain,
            less_is_better=True,
        )
        for one in jobs
    }
    theirs = statistics.mean(one["torchft_ms_a_step"] / one["unsynchronized_ms_a_step"] for one in jobs)
    ratios["torchft"] = Ratio(theirs, plain, less_is_better=True)
    for one in jobs:
        ratios[f"{one['job']}, useful tokens"] = Ratio(one["speed"] * one["merged_share"], plain)
    for preset, codecs in product(("nano", "64 MiB"), CODECS):
        faults = sum(row["faults_a_page"] for row in rows if (row["fragment"], row["codecs"]) == (preset, codecs))
        name = f"{codecs}, fresh pages, {preset}"
        ratios[name] = Ratio(faults, "pages of the fragment in f32", less_is_better=True)
    write_report(arguments.json, "cost", ratios, {"rounds": arguments.rounds, "jobs": jobs, "parts": rows})


if __name__ == "__main__":
    main()
