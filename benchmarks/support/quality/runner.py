"""Carries out the runs of the quality benchmark in worker processes, and keeps the results in a file.

Which runs are wanted and how their results are used is decided elsewhere.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.processes import workers as pool_of
from support.quality.runs import Setting, run, setting_of
from support.quality.variants import VARIANTS, WORKLOADS
from support.report import append_entry, current_commit, read_entries

Result = dict[str, Any]
Due = Callable[[dict[Setting, Result]], Sequence[Setting]]
"""The settings that are to be run, most important first, given what has a result."""


class Runner:
    """Results of runs, from the cache and from workers."""

    def __init__(self, cache: Path | None, workers: int) -> None:
        self._cache = cache
        self._workers = workers
        self._pool = pool_of(workers)
        self._commit = current_commit()
        self.results: dict[Setting, Result] = dict(self._read())

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
            print(f"    {len(wanted) - len(done)} runs known to be left", file=sys.stderr)

    def close(self) -> None:
        self._pool.shutdown()

    def _finished(self, setting: Setting, future: Future[Result]) -> None:
        try:
            result = future.result()
        except Exception as error:  # noqa: BLE001 - one run that diverges must not end the others
            print(f"{name_of(setting)}: {error}", file=sys.stderr, flush=True)
            result = {"loss": math.inf, "error": str(error), "cpu_seconds": 0.0}
        result["commit"] = self._commit
        self.results[setting] = result
        print(f"{name_of(setting)}: {result['loss']:.4f}", file=sys.stderr, flush=True)
        append_entry(self._cache, {"key": setting.key(), "setting": asdict(setting), "result": result})

    def _read(self) -> Iterable[tuple[Setting, Result]]:
        """Every run in the cache whose configuration is still that of its setting."""
        for entry in read_entries(self._cache):
            setting = setting_of(entry["setting"])
            known = setting.variant in VARIANTS and setting.workload in WORKLOADS
            if known and setting.key() == entry["key"]:
                yield setting, entry["result"]


def name_of(setting: Setting) -> str:
    """A readable name."""
    rates = ", ".join(f"{part} {value:g}" for part, value in asdict(setting.rates).items() if value is not None)
    return f"{setting.variant}, {setting.workload}, {setting.steps} steps, seed {setting.seed}: {rates}"
