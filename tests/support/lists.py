"""What a session of tests tells last: what was skipped, what passed only when run again, and what took far too long.

The first two are of this session alone. A duration is held against what was recorded for the test, times how much
slower than recorded this machine is now: the median over all tests that were recorded. So a busy machine names nobody,
and a test that waits for something that comes minutes late is named.
"""

import fcntl
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

import pytest

TITLES = {
    "skipped": "Skipped",
    "slow": "Took three times as long as recorded, or longer",
    "rerun": "Failed once, and passed when run again",
}
"""Of the lists, in this order: each has an option that names a file to append it to."""
FOLDER = Path(__file__).parents[1]
DURATIONS = FOLDER / "durations.json"
"""Seconds by test, of those that take longest; `make durations` writes them anew."""
KNOWN_RERUNS = FOLDER / "reruns.json"
"""What passed only when run again before, with the date and what is known. Once more is a failure."""
RECORDED_SECONDS = 5.0
"""Shorter tests are not recorded."""
_TOO_LONG = 3.0
_LEAST_SECONDS_MORE = 60.0


def add_options(parser: pytest.Parser) -> None:
    """The options of the lists."""
    for name, title in TITLES.items():
        parser.addoption(f"--{name}-to", type=Path, metavar="FILE", help=f"append to FILE: {title.lower()}")
    parser.addoption("--record-durations", action="store_true", help=f"write what tests take into {DURATIONS.name}")


def lists(reporter: pytest.TerminalReporter) -> dict[str, list[str]]:
    """Their lines, by name."""
    return {
        "skipped": [_skip_line(report) for report in reporter.stats.get("skipped", [])],
        "slow": list(_slow(seconds_of(reporter), recorded())),
        "rerun": [_rerun_line(report) for report in _passed_when_run_again(reporter)],
    }


def tell(reporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the lists after everything else, where they are seen, and into their files."""
    for name, lines in lists(reporter).items():
        if not lines:
            continue
        reporter.write_line(f"{TITLES[name]} ({len(lines)}):\n" + "\n".join(lines))
        path = config.getoption(f"{name}_to")
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
    if config.getoption("record_durations"):
        record(seconds_of(reporter))


def known_again(reporter: pytest.TerminalReporter) -> list[str]:
    """Tests that passed only when run again, and did so before: nobody has found out why."""
    known = {one["test"] for one in json.loads(KNOWN_RERUNS.read_text(encoding="utf-8"))}
    return sorted({report.nodeid for report in _passed_when_run_again(reporter)} & known)


def seconds_of(reporter: pytest.TerminalReporter) -> dict[str, float]:
    """How long each test took that passed, without its fixtures."""
    return {one.nodeid: one.duration for one in reporter.stats.get("passed", []) if one.when == "call"}


def slowest_files(reporter: pytest.TerminalReporter) -> list[tuple[float, str]]:
    """Seconds of all tests of a file, of those that took longest."""
    reports = (one for reports in reporter.stats.values() for one in reports if isinstance(one, pytest.TestReport))
    seconds = by_file((one.nodeid, one.duration) for one in reports)
    return sorted(((taken, file) for file, taken in seconds.items()), reverse=True)[:20]


def by_file(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sum for each file, of seconds by test; 0 for any other file."""
    found: dict[str, float] = defaultdict(float)
    for test, taken in seconds:
        found[file_of(test)] += taken
    return found


def longest_first(items: list[pytest.Item], but: str = "-") -> None:
    """Begin with the longest files: a worker that is given one last works on while the others have nothing left.

    Those of the folder ``but`` stay as they are, after the others.
    """
    seconds = by_file(recorded().items())
    items.sort(key=lambda item: 0.0 if item.nodeid.startswith(but) else -seconds[file_of(item.nodeid)])


def recorded() -> dict[str, float]:
    """Seconds by test."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


def record(seconds: Mapping[str, float]) -> None:
    """Write what these tests took; the others stay as they are recorded, if they still exist."""
    with DURATIONS.open("r+", encoding="utf-8") as file:
        # Groups of tests that run side by side end at about the same time.
        fcntl.flock(file, fcntl.LOCK_EX)
        there = {test: taken for test, taken in json.load(file).items() if (FOLDER.parent / file_of(test)).exists()}
        kept = {test: taken for test, taken in there.items() if test not in seconds}
        new = {test: round(taken, 1) for test, taken in seconds.items() if taken >= RECORDED_SECONDS}
        file.seek(0)
        file.write(json.dumps(kept | new, indent=1, sort_keys=True) + "\n")
        file.truncate()


def file_of(test: str) -> str:
    """The path of a test's file in the repository."""
    return test.partition("::")[0]


def _slow(seconds: Mapping[str, float], before: Mapping[str, float]) -> Iterator[str]:
    recorded_folders = {_folder_of(test) for test in before}
    ratios = [taken / before[test] for test, taken in seconds.items() if test in before]
    slower = max(1.0, median(ratios)) if ratios else 1.0
    for test, taken in sorted(seconds.items()):
        if _folder_of(test) not in recorded_folders:
            continue
        usual = slower * before.get(test, RECORDED_SECONDS)
        if taken > _TOO_LONG * usual and taken - usual > _LEAST_SECONDS_MORE:
            was = f"{before[test]:.0f} s recorded" if test in before else "not recorded"
            yield f"  {test}: {taken:.0f} s, {was}; this machine takes {slower:.1f} times as long"


def _folder_of(test: str) -> str:
    """As ``tests/unit``: what is recorded in one go."""
    return "/".join(test.split("/")[:2])


def _passed_when_run_again(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """The reports of their first runs."""
    passed = {report.nodeid for report in reporter.stats.get("passed", [])}
    return [report for report in reporter.stats.get("rerun", []) if report.nodeid in passed]


def _skip_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"  {report.nodeid}: {reason.removeprefix('Skipped: ')}"


def _rerun_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    cause = str(report.longrepr) if crash is None else f"{Path(crash.path).name}:{crash.lineno}: {crash.message}"
    return f"  {report.nodeid} ({report.when}): {cause.strip().splitlines()[0]}"
