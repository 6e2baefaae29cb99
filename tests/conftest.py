"""Rules for every test: the same examples each time, no process left behind, lists of what went wrong."""

import asyncio
import gc
import inspect
import logging
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from testbed import fork_server
from tests.support import lists

# Deterministic: a failure here fails everywhere. No deadline: the machine may be busy.
settings.register_profile("repository", derandomize=True, database=None, deadline=None, print_blob=True)
# Of so few examples, that a filter rejects many says little.
_QUICK: Any = {"max_examples": 20, "suppress_health_check": [HealthCheck.filter_too_much]}
settings.register_profile("quick", settings.get_profile("repository"), **_QUICK)
settings.load_profile("repository")
# Hypothesis also tries constants of the modules that happen to be loaded, which depend on what this worker ran before.
providers._get_local_constants = lambda: providers._local_constants

if "PYTEST_XDIST_WORKER" in os.environ:
    # Set before torch is imported: the workers share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs so, and what a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The garbage collector does not look at what is loaded, of which torch alone is a million objects: with it, tests of
# units compute 8 % longer.
gc.disable()

_MARK = "DILOCO_TEST_SESSION"
_REAPING_SECONDS = 10.0
_TIME_LIMIT = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    lists.add_options(parser)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Keep a test's time limit for when it is run again: pytest-timeout sets one timer for all of its runs."""
    item.stash[_TIME_LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if getattr(item, "execution_count", 1) > 1 and _TIME_LIMIT in item.stash:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[_TIME_LIMIT])


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in the event loop of its fixture `runner`, as what its fixtures have opened."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    runner.run(pyfuncitem.obj(**given))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if what passed only when it was run again had done so before.

    The first time it is listed alone, as a defect to find: one such test in a thousand would keep each change to
    anything else from being judged.
    """
    reporter = _reporter(session.config)
    if reporter is not None and session.exitstatus == pytest.ExitCode.OK and lists.known_again(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test had to be run again, as for one that fails; with ``--durations`` the slowest files too."""
    if terminalreporter.config.getoption("durations"):
        terminalreporter.section("slowest files", "=")
        for seconds, file in lists.slowest_files(terminalreporter):
            terminalreporter.write_line(f"{seconds:8.1f}s {file}")
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"run again: {report.nodeid}", "_")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, "-")
            terminalreporter.write_line(text)
    for test in lists.known_again(terminalreporter):
        terminalreporter.write_line(
            f"FAILED {test}: passed only when run again, as {lists.KNOWN_RERUNS.name} knows it did"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    reporter = _reporter(config)
    if reporter is not None:
        lists.tell(reporter, config)


def _reporter(config: pytest.Config) -> pytest.TerminalReporter | None:
    """None: this process is a worker of another one, which reports."""
    if hasattr(config, "workerinput"):
        return None
    found: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    return found


@pytest.fixture(autouse=True)
def _the_log_level_is_restored() -> Iterator[None]:
    """What a test sets up for logging changes nothing for later ones, which look at what is logged."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def _no_process_outlives_the_tests() -> Iterator[None]:
    """Fail if a process that a test started, or one that such a process started, is still there at the end."""
    # An environment variable also identifies processes that have lost their parent.
    session = uuid.uuid4().hex
    os.environ[_MARK] = session
    yield
    fork_server.end()
    del os.environ[_MARK]
    left = [process for process in psutil.process_iter() if _belongs(process, session)]
    # A process whose end was not awaited may be about to end.
    _, left = psutil.wait_procs(left, timeout=_REAPING_SECONDS)
    described = [" ".join(_command(process)) for process in left]
    for process in left:
        process.kill()
    if left:
        pytest.fail(f"{len(left)} processes outlived the tests: {'; '.join(described)}")


def _belongs(process: psutil.Process, session: str) -> bool:
    try:
        # multiprocessing keeps its tracker for as long as this process lives.
        return process.environ().get(_MARK) == session and "resource_tracker" not in " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() or [process.name()]
    except psutil.Error:
        return [str(process.pid)]
