"""The cells of the benchmark `wan`: a link, a method and a seed, and how a cell is run.

All methods train the same model on the same tokens with the same seed. Decoupled and blocking training run the
product's own syncer and learners; data-parallel training is `support/rank.py`.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from diloco.core.engine.events import LearnerJoined, StepReported
from diloco.local.status_poll import StatusError, fetch_status, read_status
from diloco.spec import load_job
from diloco.spec.status.engine import Phase
from support.job import manifest, python_path, tapes
from support.links.delay_line import HUB, LinkShape, Moved, Network
from support.processes import started

if TYPE_CHECKING:
    import subprocess

REGIONS: Final = ("r0", "r1", "r2", "r3")
"""One learner in each."""
INTERVAL: Final = 24
FRAGMENTS: Final = 24
LOOKS: Final = 8
"""Evaluations in a run, at the same tokens for all methods."""
_RENDEZVOUS_PORT: Final = 29500
_PATIENCE_SECONDS: Final = 1800
"""Of an all-reduce over the thinnest link."""
_SYNC_PORT: Final = 29400
_HTTP_PORT: Final = 29401
_POLL_SECONDS: Final = 0.2

LINKS: Final[dict[str, LinkShape | None]] = {
    "unlinked": None,
    "1gbit-20ms": LinkShape(125e6, 0.020),
    "100mbit-20ms": LinkShape(12.5e6, 0.020),
    "50mbit-20ms": LinkShape(6.25e6, 0.020),
    "10mbit-20ms": LinkShape(1.25e6, 0.020),
    "100mbit-150ms": LinkShape(12.5e6, 0.150),
}
"""By name, from a region to the hub."""

_BLOCKING: Final = {
    "fragments": 1,
    "overlap": 0,
    "maxStalenessSteps": INTERVAL,
    "compression": "None",
    "downlink": "F32",
}
METHODS: Final[dict[str, dict[str, Any] | None]] = {
    "alone": None,
    "data_parallel": None,
    "blocking": _BLOCKING,
    "ours_f32": {"fragments": FRAGMENTS, "compression": "BF16", "downlink": "F32"},
    "ours_int8": {"fragments": FRAGMENTS, "compression": "Int4", "downlink": "Int8"},
}
"""By name: the ``sync`` of a decoupled method."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained."""

    preset: str
    sequences: int
    sequence_length: int
    steps: int
    """Inner steps of each learner, if none of its work is lost."""
    seeds: int

    @property
    def tokens(self) -> int:
        """Of all learners."""
        return len(REGIONS) * self.steps * self.sequences * self.sequence_length


FULL: Final = Size("nano", 8, 64, 480, 3)
SMALL: Final = Size("nano", 4, 32, 144, 1)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    link: str
    method: str
    seed: int
    size: Size

    @property
    def name(self) -> str:
        return f"{self.method}, {self.link}, {self.size.steps} steps, seed {self.seed}"

    def manifest(self) -> dict[str, Any]:
        size = self.size
        training = {
            "tokens": size.tokens,
            "sequenceLength": size.sequence_length,
            "batchSize": size.sequences,
            "seed": self.seed,
            "evaluation": {"everyTokens": max(1, size.tokens // LOOKS), "sequences": 32},
        }
        outer = {"learningRate": 1.0, "momentum": 0.0}
        sync = {"interval": INTERVAL, "quorum": len(REGIONS), "outerOptimizer": outer, **(METHODS[self.method] or {})}
        model = {"builtin": {"preset": size.preset}}
        return manifest("wan", dict.fromkeys(REGIONS, 1), training=training, sync=sync, model=model)


class _Loopback:
    """No link at all: everything on loopback, which counts nothing."""

    interface: Final = "lo"

    def inside(self, _region: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def address(self, _region: str) -> str:
        return "127.0.0.1"

    hub_address = address

    def moved(self, _region: str) -> Moved:
        return Moved(0, 0)


Joined = Network | _Loopback


def run(cell: Cell) -> dict[str, Any]:
    """Run a cell; the result is plain JSON.

    Raises:
        NoNetworkError: this machine gives no namespaces.
        RuntimeError: a process failed; the text has the end of its log.
    """
    network: AbstractContextManager[Joined] = contextlib.nullcontext(_Loopback())
    if link := LINKS[cell.link]:
        if METHODS[cell.method] is None:  # from region to region by way of the hub is one round trip
            link = replace(link, round_trip_seconds=link.round_trip_seconds / 2)
        network = Network(dict.fromkeys(REGIONS, link))
    with tempfile.TemporaryDirectory() as name, network as joined:
        folder = Path(name)
        job = folder / "job.yaml"
        job.write_text(json.dumps(cell.manifest()))  # JSON is YAML
        before = [joined.moved(region) for region in REGIONS]
        with _Processes(folder, joined) as processes:
            if METHODS[cell.method] is None:
                result = _data_parallel(processes, cell, job, joined)
            else:
                result = _decoupled(processes, job, joined)
        after = [joined.moved(region) for region in REGIONS]
    pairs = list(zip(after, before, strict=True))
    return {
        **result,
        "up_bytes": [now.up_bytes - then.up_bytes for now, then in pairs],
        "down_bytes": [now.down_bytes - then.down_bytes for now, then in pairs],
    }


class _Processes:
    """Processes of a run, each with a log; all are ended at the end."""

    def __init__(self, folder: Path, joined: Joined) -> None:
        self._folder = folder
        self._joined = joined
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            process.kill()
            process.wait()

    def start(self, name: str, region: str, words: Sequence[str], **environment: str) -> None:
        with self._joined.inside(region), (self._folder / f"{name}.log").open("wb") as log:
            settings = [f"{key}={value}" for key, value in {"OMP_NUM_THREADS": "1", **environment}.items()]
            command = ["/usr/bin/env", *settings, sys.executable, *words]
            self._started[name] = started(command, stdout=log, stderr=log)

    def await_all(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait until every process has ended, or one has failed; ``look`` is called now and then."""
        while any(process.poll() is None for process in self._started.values()):
            self.check()
            look()
            time.sleep(_POLL_SECONDS)
        self.check()

    def check(self) -> None:
        for name, process in self._started.items():
            if process.poll():
                end = (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {process.returncode}: {end}")


class _Steady:
    """Bytes and merges of the middle of a run: without the model at first, and without what is sent in vain at last."""

    def __init__(self, joined: Joined, fragments: int) -> None:
        self._joined = joined
        self._least_rounds = 2 * fragments
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] = (0, 0)

    def look(self) -> None:
        with contextlib.suppress(StatusError), self._joined.inside(HUB):
            status = fetch_status(f"127.0.0.1:{_HTTP_PORT}", timeout_seconds=2.0)
            if status.phase is not Phase.TRAINING or status.syncer_step < self._least_rounds:
                return
            rounds = status.syncer_step
            moved = sum(sum(self._joined.moved(region)) for region in REGIONS)
            self._first = self._first or (rounds, moved)
            self._last = (rounds, moved)

    @property
    def result(self) -> dict[str, Any]:
        """What was moved in how many merges; none if the run was too short."""
        if self._first is None:
            return {"steady_rounds": 0, "steady_bytes": 0}
        return {"steady_rounds": self._last[0] - self._first[0], "steady_bytes": self._last[1] - self._first[1]}


def _data_parallel(processes: "_Processes", cell: Cell, job: Path, joined: Joined) -> dict[str, Any]:
    ranks = 1 if cell.method == "alone" else len(REGIONS)
    words = ["-m", "support.rank", str(job), str(job.parent), "--looks", str(LOOKS)]
    words += ["--patience-seconds", str(_PATIENCE_SECONDS), *(["--all-shards"] if ranks == 1 else [])]
    place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": joined.address(REGIONS[0]), "MASTER_PORT": str(_RENDEZVOUS_PORT)}
    place |= {"GLOO_SOCKET_IFNAME": joined.interface, "PYTHONPATH": python_path()}
    for rank, region in enumerate(REGIONS[:ranks]):
        processes.start(f"rank-{rank}", region, words, RANK=str(rank), **place)
    processes.await_all()
    result: dict[str, Any] = json.loads(job.with_name("result.json").read_text())
    return result


def _decoupled(processes: "_Processes", job: Path, joined: Joined) -> dict[str, Any]:
    spec = load_job(job).spec

    def start(name: str, region: str, kind: str, *flags: str) -> None:
        own = ["--job", str(job), "--directory", str(job.parent / name), "--threads", "1"]
        processes.start(name, region, ["-m", "diloco.cli.entry", kind, *own, *flags])

    listen = ("--listen", f"0.0.0.0:{_SYNC_PORT}", "--http", f"127.0.0.1:{_HTTP_PORT}", "--exit-when-finished")
    start("syncer", HUB, "syncer", *listen)
    while not (job.parent / "syncer" / "endpoint.json").exists():
        processes.check()
        time.sleep(_POLL_SECONDS)
    for learner in spec.learner_ids:
        region = learner.partition("/")[0]
        syncer = f"{joined.hub_address(region)}:{_SYNC_PORT}"
        start(region, region, "learner", "--learner", learner, "--syncer", syncer)
    steady = _Steady(joined, spec.sync.fragments)
    processes.await_all(steady.look)
    return {**_result_of(job), **steady.result}


def _result_of(job: Path) -> dict[str, Any]:
    ((_, entries),) = tapes(job.parent)
    status = read_status(job.parent / "syncer")
    joined = next(entry.now for entry in entries if isinstance(entry.event, LearnerJoined))
    first = next(entry.now for entry in entries if isinstance(entry.event, StepReported))
    activities = [json.loads((job.parent / region / "activity.json").read_text()) for region in REGIONS]
    spent = [one["seconds"] for one in activities]
    walls = [sum(one.values()) - one["loading"] for one in spent]
    pairs = list(zip(spent, walls, strict=True))
    return {
        "seconds": max(wall - one["evaluating"] - one["checkpointing"] for one, wall in pairs),
        "steps": max(one["steps"] for one in activities),
        "tokens": sum(one["tokens"] for one in activities),
        "merged_tokens": status.merged_tokens,
        "rounds": status.syncer_step,
        "blocked_share": max((one["paused"] + one["looking"] + one["copying"]) / wall for one, wall in pairs),
        "evaluations": [
            {"seconds": joined + one.seconds - first, "tokens": one.tokens, "loss": one.loss}
            for one in status.evaluations
        ],
    }
