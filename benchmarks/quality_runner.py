"""Carries out the runs of the quality benchmark in worker processes, and keeps the results in a file.

Which runs are wanted and how their results are used is decided elsewhere.
"""

import json
import math
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quality_runs import Setting, fingerprint, run, setting_of
from quality_variants import LEARNERS, VARIANTS, WORKLOADS

Result = dict[str, Any]
Due = Callable[[dict[Setting, Result]], Sequence[Setting]]
"""The settings that are to be run, most important first, given what has a result."""
_STEP_SECONDS, _TOKEN_SECONDS = 2e-3, 1.1e-6
"""CPU seconds of an inner step of pico and of a token in it, where no run tells."""


class Runner:
    """Results of runs, from the cache and from workers."""

    def __init__(self, cache: Path | None, workers: int, variants: Iterable[str]) -> None:
        """Compute the fingerprints of ``variants``, which will be requested, and of those in the cache."""
        self._cache = cache
        self._workers = workers
        # Spawned, not forked: torch's thread pool does not survive a fork. A worker that started keeps its code.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, context, initializer=_end_with, initargs=(os.getpid(),))
        kept = list(self._read())
        names = sorted({*variants, *(setting.variant for setting, _, _ in kept)})
        self.fingerprints = dict(zip(names, self._pool.map(fingerprint, names), strict=True))
        self.results: dict[Setting, Result] = {
            setting: result for setting, key, result in kept if setting.key(self.fingerprints) == key
        }

    def run(self, due: Due, after_each: Callable[[], None]) -> None:
        """Run what is due until nothing is. ``after_each``: called after each run."""
        running: dict[Future[Result], Setting] = {}
        while True:
            wanted = due(self.results)
            waiting = [setting for setting in wanted if setting not in running.values()]
            for setting in waiting[: self._workers - len(running)]:
                running[self._pool.submit(run, setting)] = setting
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                self._finished(running.pop(future), future)
            after_each()
            hours = sum(map(self.seconds, wanted)) / 3600
            print(f"    {len(wanted) - len(done)} runs known to be left, {hours:.2f} CPU hours", file=sys.stderr)

    def seconds(self, setting: Setting) -> float:
        """CPU seconds that a run is expected to take, from those like it."""
        steps = setting.steps * LEARNERS
        alike = [
            result["cpu_seconds"] / (other.steps * LEARNERS)
            for other, result in self.results.items()
            if (other.workload, other.what.kind, other.what.optimizer)
            == (setting.workload, setting.what.kind, setting.what.optimizer)
        ]
        return steps * (
            statistics.median(alike) if alike else _STEP_SECONDS + _TOKEN_SECONDS * setting.load.step_tokens
        )

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()

    def _finished(self, setting: Setting, future: Future[Result]) -> None:
        try:
            result = future.result()
        except Exception as error:  # noqa: BLE001 - one run that diverges must not end the others
            print(f"{name_of(setting)}: {error}", file=sys.stderr, flush=True)
            result = {"loss": math.inf, "error": str(error), "cpu_seconds": 0.0}
        result["code"] = self.fingerprints[setting.variant]
        self.results[setting] = result
        print(f"{name_of(setting)}: {result['loss']:.4f}", file=sys.stderr, flush=True)
        if self._cache is not None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            entry = {"key": setting.key(self.fingerprints), "setting": asdict(setting), "result": result}
            with self._cache.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def _read(self) -> Iterable[tuple[Setting, str, Result]]:
        """Every run in the cache whose variant is still there, whatever code made it."""
        if self._cache is None or not self._cache.exists():
            return
        for line in self._cache.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # torn by an interruption
                continue
            setting = setting_of(entry["setting"])
            if setting.variant in VARIANTS and setting.workload in WORKLOADS:
                yield setting, entry["key"], entry["result"]


def _end_with(parent: int) -> None:
    """End this worker when its parent ends in any way: runs take minutes, and their results would be lost."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def name_of(setting: Setting) -> str:
    """A readable name."""
    rates = ", ".join(f"{part} {value:g}" for part, value in asdict(setting.rates).items() if value is not None)
    return f"{setting.variant}, {setting.workload}, {setting.steps} steps, seed {setting.seed}: {rates}"
