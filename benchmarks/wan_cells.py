"""The cells of the benchmark `wan`: a link, a method and a seed, and how a cell is run.

All methods train the same model on the same tokens with the same seed. Decoupled and blocking training run the
product's own syncer and learners; data-parallel training is `wan_data_parallel.py`.
"""

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from diloco.local.journal import Entry
from diloco.local.report.history_builder import HistoryBuilder
from diloco.local.status_poll import StatusError, fetch_status
from diloco.model import layout_of_job
from diloco.spec import DiLoCoJob, load_job
from diloco.spec.syncer_status import Phase
from diloco.syncer.disk.checkpoint import checkpoint_names, read_checkpoint_manifest
from diloco.tape.reader import TapeReader
from diloco.tape.segments import find_tapes
from wan_network import HUB, Joined, Moved, network

REGIONS: Final = 4
INTERVAL: Final = 24
FRAGMENTS: Final = 24
LOOKS: Final = 8
"""Evaluations in a run, at the same tokens for all methods."""
_RENDEZVOUS_PORT: Final = 29500
_SYNC_PORT: Final = 29400
_HTTP_PORT: Final = 29401
_POLL_SECONDS: Final = 0.2

LINKS: Final[dict[str, tuple[float, float]]] = {
    "unlinked": (math.inf, 0.0),
    "1gbit-20ms": (125e6, 0.020),
    "100mbit-20ms": (12.5e6, 0.020),
    "50mbit-20ms": (6.25e6, 0.020),
    "10mbit-20ms": (1.25e6, 0.020),
    "100mbit-150ms": (12.5e6, 0.150),
}
"""By name: bytes a second and seconds of a round trip."""

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
        return REGIONS * self.steps * self.sequences * self.sequence_length


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
        """For people."""
        return f"{self.method}, {self.link}, {self.size.steps} steps, seed {self.seed}"

    def manifest(self) -> dict[str, Any]:
        """The job."""
        sync = {
            "interval": INTERVAL,
            "quorum": REGIONS,
            "outerOptimizer": {"learningRate": 1.0, "momentum": 0.0},
            **(METHODS[self.method] or {}),
        }
        return {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "wan"},
            "spec": {
                "model": {"builtin": {"preset": self.size.preset}},
                "data": {"text": {}},
                "training": {
                    "tokens": self.size.tokens,
                    "sequenceLength": self.size.sequence_length,
                    "batchSize": self.size.sequences,
                    "seed": self.seed,
                    "evaluation": {"everyTokens": max(1, self.size.tokens // LOOKS), "sequences": 32},
                },
                "sync": sync,
                "regions": [{"name": name, "pools": [{"name": "p", "learners": 1}]} for name in region_names()],
            },
        }


def region_names() -> list[str]:
    """The regions, one learner in each."""
    return [f"r{number}" for number in range(REGIONS)]


def run(cell: Cell) -> dict[str, Any]:
    """Run a cell; the result is plain JSON.

    Raises:
        NoNetworkError: this machine gives no namespaces.
        RuntimeError: a process failed; the text has the end of its log.
    """
    rate, round_trip = LINKS[cell.link]
    if METHODS[cell.method] is None:
        round_trip /= 2  # from region to region by way of the hub is then one round trip
    with tempfile.TemporaryDirectory() as name, network(region_names(), rate, round_trip) as joined:
        folder = Path(name)
        job = folder / "job.yaml"
        job.write_text(yaml.safe_dump(cell.manifest()))
        before = [joined.moved(region) for region in region_names()]
        match cell.method:
            case "alone":
                result = _data_parallel(cell, job, joined, ranks=1)
            case "data_parallel":
                result = _data_parallel(cell, job, joined, ranks=REGIONS)
            case _:
                result = _decoupled(job, joined)
        moved = [_difference(joined.moved(region), was) for region, was in zip(region_names(), before, strict=True)]
    parameters = layout_of_job(DiLoCoJob.model_validate(cell.manifest()).spec).numel
    return {
        **result,
        "parameters": parameters,
        "up_bytes": [one.up_bytes for one in moved],
        "down_bytes": [one.down_bytes for one in moved],
    }


def _difference(now: Moved, before: Moved) -> Moved:
    return Moved(now.up_bytes - before.up_bytes, now.down_bytes - before.down_bytes)


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
        """Start one in a region."""
        with self._joined.inside(region), (self._folder / f"{name}.log").open("wb") as log:
            settings = [f"{key}={value}" for key, value in {"OMP_NUM_THREADS": "1", **environment}.items()]
            command = ["/usr/bin/env", *settings, sys.executable, *words]
            self._started[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def await_all(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait until every process has ended, or one has failed; ``look`` is called now and then."""
        while any(process.poll() is None for process in self._started.values()):
            self.check()
            look()
            time.sleep(_POLL_SECONDS)
        self.check()

    def check(self) -> None:
        """Raise if a process has failed."""
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
        """Sample merges and bytes."""
        with contextlib.suppress(StatusError), self._joined.inside(HUB):
            status = fetch_status(f"127.0.0.1:{_HTTP_PORT}", timeout_seconds=2.0)
            if status.phase is not Phase.TRAINING or status.syncer_step < self._least_rounds:
                return
            rounds = status.syncer_step
            moved = sum(sum(self._joined.moved(region)) for region in region_names())
            self._first = self._first or (rounds, moved)
            self._last = (rounds, moved)

    @property
    def result(self) -> dict[str, Any]:
        """What was moved in how many merges; none if the run was too short."""
        if self._first is None:
            return {"steady_rounds": 0, "steady_bytes": 0}
        return {"steady_rounds": self._last[0] - self._first[0], "steady_bytes": self._last[1] - self._first[1]}


def _data_parallel(cell: Cell, job: Path, joined: Joined, ranks: int) -> dict[str, Any]:
    script = str(Path(__file__).with_name("wan_data_parallel.py"))
    out = job.with_name("rank-0.json")
    with _Processes(job.parent, joined) as processes:
        for rank in range(ranks):
            region = region_names()[rank]
            words = [script, str(job), str(job.with_name(f"rank-{rank}.json")), "--rank", str(rank), "--of", str(ranks)]
            words += ["--steps", str(cell.size.steps), "--looks", str(LOOKS)]
            words += ["--rendezvous", f"{joined.address(region_names()[0])}:{_RENDEZVOUS_PORT}"]
            processes.start(f"rank-{rank}", region, words, GLOO_SOCKET_IFNAME=joined.interface())
        processes.await_all()
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def _decoupled(job: Path, joined: Joined) -> dict[str, Any]:
    folder = job.parent
    spec = load_job(job).spec
    cli = ["-m", "diloco.cli.entry"]
    with ExitStack() as stack:
        processes = stack.enter_context(_Processes(folder, joined))
        listen = [
            "--listen",
            f"0.0.0.0:{_SYNC_PORT}",
            "--http",
            f"127.0.0.1:{_HTTP_PORT}",
            "--exit-when-finished",
            "--threads",
            "1",
        ]
        processes.start(
            "syncer", HUB, [*cli, "syncer", "--job", str(job), "--directory", str(folder / "syncer"), *listen]
        )
        while not (folder / "syncer" / "endpoint.json").exists():
            processes.check()
            time.sleep(_POLL_SECONDS)
        for learner in spec.learner_ids:
            region = learner.partition("/")[0]
            address = f"{joined.hub_address(region)}:{_SYNC_PORT}"
            words = [*cli, "learner", "--job", str(job), "--directory", str(folder / region), "--threads", "1"]
            processes.start(region, region, [*words, "--learner", learner, "--syncer", address])
        steady = _Steady(joined, spec.sync.fragments)
        processes.await_all(steady.look)
    return {**_result_of(job), **steady.result}


def _result_of(job: Path) -> dict[str, Any]:
    manifest = load_job(job)
    (files,) = find_tapes(job.parent / "syncer" / "tape")
    reader = TapeReader(files)
    began = Entry("run", "", reader.header.started_at)
    builder = HistoryBuilder(manifest, layout_of_job(manifest.spec), [began])
    builder.take(reader.header, reader)
    history = builder.history()
    checkpoints = job.parent / "syncer" / "checkpoints"
    last = read_checkpoint_manifest(checkpoints / checkpoint_names(checkpoints)[-1])
    activities = [json.loads((job.parent / region / "activity.json").read_text()) for region in region_names()]
    walls = [sum(one["seconds"].values()) - one["seconds"]["loading"] for one in activities]
    first = min(point.seconds for one in history.learners for point in one.losses)
    evaluating = [one["seconds"]["evaluating"] + one["seconds"]["checkpointing"] for one in activities]
    blocked = [sum(one["seconds"][kind] for kind in ("paused", "looking", "copying")) for one in activities]
    seconds = max(wall - other for wall, other in zip(walls, evaluating, strict=True))
    return {
        "seconds": seconds,
        "steps": max(one["steps"] for one in activities),
        "tokens": sum(one["tokens"] for one in activities),
        "merged_tokens": history.merged_tokens,
        "rounds": history.syncer_steps,
        "counted": [one.model_dump() for one in last.bytes_by_region],
        "pulls": [one["pulls"] for one in activities],
        "retries": [one["retries"] for one in activities],
        "blocked_share": max(part / wall for part, wall in zip(blocked, walls, strict=True)),
        "evaluations": [
            {"seconds": one.seconds - first, "tokens": one.tokens, "loss": one.loss} for one in history.evaluations
        ],
    }
